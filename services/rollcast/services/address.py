"""Parses a server's address: "host:port", "unix:/path", or "file:/path" of a file that contains the address."""

import ipaddress
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollcast.services.errors import ConfigurationError

# sun_path of Linux holds 108 bytes, the last of them 0.
MAX_SOCKET_PATH_BYTES: Final = 107

# Servers at these hosts listen at every address of the machine.
EVERY_HOST: Final = ("0.0.0.0", "::", "*")

_HOST_AND_PORT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address.

    Attributes:
        text: The given address, in gRPC's form.
        host: The host, without the brackets of IPv6; empty for a unix socket.
        port: The port; 0: a unix socket, or any free port.
        path: The unix socket; None for TCP.
        rendezvous: The file to which the server writes its address; None: the address is not a file.
    """

    text: str
    host: str = ""
    port: int = 0
    path: Path | None = None
    rendezvous: Path | None = None

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the address: a unix socket, `localhost`, or a loopback IP address.

        The method resolves no other names, because they may resolve differently later.
        """
        if self.path is not None or self.host.lower() == "localhost":
            return True
        if self.rendezvous is not None:
            return False
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def exclude_one_another(one: Address, other: Address) -> bool:
    """Returns whether two servers on one machine cannot both listen at these addresses, judged by the text alone."""
    if one.path is not None or other.path is not None:
        return one.path == other.path
    every = one.host in EVERY_HOST or other.host in EVERY_HOST
    return one.port == other.port != 0 and (every or one.host == other.host)


def parse_address(text: str) -> Address:
    """Checks an address and splits it into its parts.

    Args:
        text: "host:port", "[ipv6]:port", "unix:/path" or "file:/path".

    Returns:
        The parts.

    Raises:
        ConfigurationError: The text has none of these forms, the port is above 65535, or the path is too long for a
            socket or not UTF-8.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if path.startswith("//"):
            path = path[2:]
        try:
            n_bytes = len(path.encode())
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the address {text!r} has a socket path that is not UTF-8; expected UTF-8; choose another path"
            ) from error
        if not 0 < n_bytes <= MAX_SOCKET_PATH_BYTES:
            raise ConfigurationError(
                f"the address {text!r} has a socket path of {n_bytes} bytes; expected 1 to "
                f"{MAX_SOCKET_PATH_BYTES}; choose a shorter one, for example under /tmp"
            )
        return Address(text=f"unix:{path}", path=Path(path))
    if text.startswith("file:"):
        file = re.sub("^//(?=/)", "", text.removeprefix("file:"))
        if not file:
            raise ConfigurationError(f"the address {text!r} names no file; expected 'file:/path'; correct it")
        return Address(text=text, rendezvous=Path(file))
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ConfigurationError(
            f"the address {text!r} cannot be used; expected 'host:port' with a port up to 65535, 'unix:/path' or "
            "'file:/path'; correct it"
        )
    return Address(text=text, host=match["host"].strip("[]"), port=int(match["port"]))


def parse_listening_address(text: str) -> Address:
    """Checks and splits the listening address of a server.

    Raises:
        ConfigurationError: As for `parse_address`, or the address is a file.
    """
    address = parse_address(text)
    if address.rendezvous is not None:
        raise ConfigurationError(
            f"the address {text!r} is a file; expected host:port or unix:/path for listening; give the file as "
            "--address-file, and this address to clients"
        )
    return address


def parse_web_address(text: str) -> Address:
    """Checks and splits the listening address of an HTTP server.

    Raises:
        ConfigurationError: As for `parse_listening_address`, or the address is a unix socket.
    """
    address = parse_listening_address(text)
    if address.path is not None:
        raise ConfigurationError(
            f"the address {text!r} is a unix socket; expected host:port, because HTTP clients use it; choose a port"
        )
    return address


def following_address(text: str, number: int, whose: str) -> str:
    """Returns the address of a further server: a later port, or a socket beside that of the first server.

    Args:
        text: The address of the first server, as given in --address.
        number: The distance from the first server; 0: the first server itself.
        whose: The description of the further server in messages.

    Raises:
        ConfigurationError: The port would be too high, or the address is malformed.
    """
    where = parse_address(text)
    if number == 0 or (where.path is None and where.port == 0):
        return text
    if where.path is not None:
        return f"unix:{where.path}.{number}"
    if where.port + number > 65535:
        raise ConfigurationError(
            f"--address: {text!r} with {whose}, whose port would be {where.port + number}; expected a port that leaves "
            "room for all of them; choose a lower one, or port 0"
        )
    host, _, _ = text.rpartition(":")
    return f"{host}:{where.port + number}"


def split_addresses(text: str) -> tuple[str, ...]:
    """Splits several addresses, separated by commas.

    Raises:
        ConfigurationError: No address is given, an address is given twice, or an address is malformed.
    """
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses or len(set(addresses)) < len(addresses):
        raise ConfigurationError(
            f"learner_address is {text!r}; expected one address, or several different ones, separated by commas; "
            "correct it"
        )
    for address in addresses:
        parse_address(address)
    return addresses


def shown_peer(peer: str) -> str:
    """Returns a caller's address for display: "[::1]:36172" for gRPC's "ipv6:%5B::1%5D:36172".

    Args:
        peer: The caller, or its host, in gRPC's format.
    """
    kind, _, where = peer.partition(":")
    return urllib.parse.unquote(where) if kind in ("ipv4", "ipv6") else peer
