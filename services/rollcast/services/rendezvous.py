"""Reads and writes the file with a server's address, for clusters that choose the server's machine and port.

Clients use the address `file:/path`. They read the file for every connection, so they find a server that has moved.
"""

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rollcast.services.address import EVERY_HOST, parse_address
from rollcast.services.errors import ConfigurationError, LearnerUnreachableError
from rollcast.services.process.named_files import is_replaceable, read_named_file

# The largest file that is read; a name of a host has at most 253 characters.
_MAX_FILE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The address of a server.

    Attributes:
        address: `host:port`, for other machines.
        server_name: The name in the server's certificate; empty: the address's host.
    """

    address: str
    server_name: str = ""


class Announcement(NamedTuple):
    """The file that gives a server's address to other machines.

    Attributes:
        file: The file.
        host: The host in the file; empty: this machine's name.
        server_name: The name in the server's certificate; empty: the host's.
    """

    file: Path
    host: str = ""
    server_name: str = ""


def write_rendezvous(path: Path, rendezvous: Rendezvous) -> None:
    """Writes the file atomically, readable only by its owner.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if not is_replaceable(path):
        raise ConfigurationError(
            f"the address file {str(path)!r} cannot be written: it is not a regular file; expected a file that this "
            "process may replace; choose another --address-file"
        )
    temporary = ""
    try:
        # mkstemp makes the file readable for its owner only
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(rendezvous)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigurationError(
            f"the address file {str(path)!r} cannot be written: {error.strerror}; expected a folder in which this "
            "process may write; choose another --address-file"
        ) from error


def withdraw_rendezvous(path: Path, rendezvous: Rendezvous) -> None:
    """Removes the file, unless another server has overwritten it."""
    # The file is removed, damaged or unreachable, and the server ends in any case.
    with contextlib.suppress(OSError, ConfigurationError, LearnerUnreachableError):
        if read_rendezvous(path) == rendezvous:
            path.unlink()


@contextlib.contextmanager
def announced(listening: str, announcement: Announcement | None) -> Iterator[None]:
    """Announces a server's address to other machines until the block ends. No effect without an announcement.

    Args:
        listening: The listening address, with its port.
        announcement: The file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if announcement is None:
        yield
        return
    rendezvous = Rendezvous(
        address=advertised_address(listening, announcement.host), server_name=announcement.server_name
    )
    write_rendezvous(announcement.file, rendezvous)
    try:
        yield
    finally:
        withdraw_rendezvous(announcement.file, rendezvous)


def advertised_address(listening: str, host: str) -> str:
    """Returns the address of a server for other machines.

    Args:
        listening: The listening address, with its port.
        host: The host in the address; empty: the listening host or, for a wildcard address, this machine's name.
    """
    where = parse_address(listening)
    if where.path is not None:
        return listening
    name = host or (socket.gethostname() if where.host in EVERY_HOST else where.host)
    return f"[{name}]:{where.port}" if ":" in name else f"{name}:{where.port}"


def read_rendezvous(path: Path) -> Rendezvous:
    """Reads the file of a server.

    Raises:
        LearnerUnreachableError: The file does not exist, because the server has not started, or has ended.
        ConfigurationError: The file cannot be read, or `write_rendezvous` did not write it.
    """
    try:
        content = json.loads(read_named_file(path, _MAX_FILE_BYTES))
        rendezvous = Rendezvous(address=str(content["address"]), server_name=str(content.get("server_name") or ""))
        # JSON may have half a character.
        f"{rendezvous.address}{rendezvous.server_name}".encode()
    except FileNotFoundError as error:
        raise LearnerUnreachableError(
            f"there is no address file {str(path)!r}; expected one from a learner with --address-file; the learner has "
            "not started, or has ended"
        ) from error
    except PermissionError as error:
        raise ConfigurationError(
            f"the address file {str(path)!r} cannot be read: {error.strerror}; expected a file that this user "
            "owns; start this process and the one that wrote the file as the same user"
        ) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"the address file {str(path)!r} has no address; expected a file from a learner with --address-file; "
            "correct the path"
        ) from error
    if parse_address(rendezvous.address).rendezvous is not None:
        raise ConfigurationError(
            f"the address file {str(path)!r} contains another file, {rendezvous.address!r}; expected host:port"
        )
    return rendezvous
