"""The file in which a server writes its address, for clusters: neither its machine nor its port is known before.

Clients take it as the address `file:/path`. It is read at every connection, so that a server that moved is found.
"""

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rollcast.services.address import EVERY_HOST, parse_address
from rollcast.services.errors import ConfigurationError, LearnerUnreachableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The place of a server.

    Attributes:
        address: `host:port`, as other machines reach it.
        server_name: The name in its certificate; empty: that of the address.
    """

    address: str
    server_name: str = ""


class Announcement(NamedTuple):
    """The file that says other machines where a server is.

    Attributes:
        file: The file.
        host: The host to name there; empty: this machine's name.
        server_name: The name in the server's certificate; empty: the host's.
    """

    file: Path
    host: str = ""
    server_name: str = ""


def write_rendezvous(path: Path, rendezvous: Rendezvous) -> None:
    """Writes the file whole or not at all, readable for its owner only.

    Raises:
        ConfigurationError: It cannot be written.
    """
    temporary = ""
    try:
        # mkstemp makes it readable for its owner only
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
            f"the address file {str(path)!r} cannot be written: {error.strerror}; expected a folder that this process "
            "may write to; choose another --address-file"
        ) from error


def withdraw_rendezvous(path: Path, rendezvous: Rendezvous) -> None:
    """Removes the file, unless another server has written it since."""
    # Gone, damaged or out of reach: there is nothing left to remove, and the server ends either way.
    with contextlib.suppress(OSError, ConfigurationError, LearnerUnreachableError):
        if read_rendezvous(path) == rendezvous:
            path.unlink()


@contextlib.contextmanager
def announced(listening: str, announcement: Announcement | None) -> Iterator[None]:
    """Announces the address of a server to other machines until the block ends; without an announcement, does nothing.

    Args:
        listening: The address it listens at, with its port.
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
    """Returns the address under which other machines reach a server.

    Args:
        listening: The address it listens at, with its port.
        host: The host to name; empty: the one it listens at or, if it listens at all of them, this machine's name.
    """
    where = parse_address(listening)
    if where.path is not None:
        return listening
    name = host or (socket.gethostname() if where.host in EVERY_HOST else where.host)
    return f"[{name}]:{where.port}" if ":" in name else f"{name}:{where.port}"


def read_rendezvous(path: Path) -> Rendezvous:
    """Reads the file of a server.

    Raises:
        LearnerUnreachableError: There is no such file: the server has not started, or has ended.
        ConfigurationError: It cannot be read, or `write_rendezvous` has not written it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rendezvous = Rendezvous(address=str(content["address"]), server_name=str(content.get("server_name") or ""))
    except FileNotFoundError as error:
        raise LearnerUnreachableError(
            f"there is no address file {str(path)!r}; expected one from a learner with --address-file, which has not "
            "started or has ended"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"the address file {str(path)!r} cannot be read: {error.strerror}; expected a file of this user, since it "
            "is written for its owner alone; start both as the same user"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the address file {str(path)!r} has no address; expected what a learner with --address-file writes; "
            "correct the path"
        ) from error
    if parse_address(rendezvous.address).rendezvous is not None:
        raise ConfigurationError(
            f"the address file {str(path)!r} names another file, {rendezvous.address!r}; expected host:port"
        )
    return rendezvous
