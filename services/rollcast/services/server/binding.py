"""Checks that a server can listen at an address, because gRPC's errors contain no reason."""

import contextlib
import errno
import os
import socket
import stat
from typing import Final

from rollcast.services.address import Address
from rollcast.services.errors import AddressInUseError, ConfigurationError

_CONNECT_TIMEOUT_S: Final = 1.0


def check_bindable(address: Address) -> None:
    """Checks that an address is free and that a server can listen at it. Removes an abandoned unix socket.

    gRPC unlinks any socket at the path, so it would take over another server's clients.

    Args:
        address: The address.

    Raises:
        AddressInUseError: Another server has the address.
        ConfigurationError: A server cannot listen at the address for another reason.
    """
    if address.path is None:
        _check_tcp(address)
    else:
        _check_unix(address)


def _check_tcp(address: Address) -> None:
    try:
        candidates = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the host of the address {address.text!r} cannot be resolved: {error}; expected a name or IP address of "
            "this machine, for example 127.0.0.1 or 0.0.0.0; correct it"
        ) from error
    for family, kind, protocol, _, where in candidates:
        try:
            probe = socket.socket(family, kind, protocol)
        except OSError:  # an address family that this machine lacks; gRPC skips it, too
            continue
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(where)
                probe.listen(1)
            except OSError as error:
                raise _explain(address, error) from error


def _explain(address: Address, error: OSError) -> AddressInUseError | ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"the address {address.text!r} is in use by another process; expected it to be free; stop the other "
            "learner or choose another port (0 takes any free one)"
        )
    return ConfigurationError(
        f"the address {address.text!r} cannot be bound: {error.strerror}; expected an address of this machine and a "
        "port for this user; correct it"
    )


def _check_unix(address: Address) -> None:
    path = address.path
    assert path is not None  # the caller has checked
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"the socket {str(path)!r} has no folder: {str(path.parent)!r} does not exist; expected a folder; make it"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the socket {str(path)!r} cannot be made in {str(path.parent)!r}; expected a folder in which this user "
            "may write; choose another"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{str(path)!r} is not a socket; expected a socket or no file; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # left behind by a server that was killed
            return
        except OSError:  # a full backlog (EAGAIN, timeout) or no permission: a server listens
            pass
    raise AddressInUseError(
        f"the socket {str(path)!r} is in use by another process; expected it to be free; stop the other learner or "
        "choose another path"
    )
