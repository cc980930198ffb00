"""Defines the protection of a connection: TLS files and tokens. The module does not import gRPC.

A unix socket needs neither TLS nor tokens, because the modes of the socket and its folder control access.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rollcast.services.address import parse_address, parse_listening_address
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.named_files import read_named_file
from rollcast.services.security.tokens import TokenFile, Tokens, check_token, read_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The TLS files of a server, in PEM.

    Attributes:
        cert: The server's certificate, followed by intermediate certificates.
        key: The key of the certificate.
        client_ca: The authorities of clients, for mutual TLS. The server refuses a client without a certificate from
            one of them. None: every client may connect.
        prefix: The prefix of the options' names, for messages.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    prefix: str = ""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)

    def check(self) -> None:
        """Reads the files.

        Raises:
            ConfigurationError: A file cannot be read or is not PEM, or certificate and key do not match.
        """
        _check_pair(self.cert, self.key, self.prefix)
        if self.client_ca is not None:
            _check_authority(self.client_ca, f"{self.prefix}tls_client_ca")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSecurity:
    """The TLS and tokens that a server requires. The default is for loopback addresses and unix sockets.

    Attributes:
        tls: The TLS files; None: plain TCP.
        tokens: Returns the role of each token; None: every client may make every call.
        insecure: Whether to serve other machines without TLS.
        prefix: The prefix of the TLS options' names, for messages.
    """

    tls: ServerTls | None = None
    tokens: Tokens | None = None
    insecure: bool = False
    prefix: str = ""

    @classmethod
    def from_files(
        cls,
        *,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        tls_client_ca: Path | None = None,
        tokens_file: Path | None = None,
        insecure: bool = False,
        prefix: str = "",
    ) -> Self:
        """Makes the security from a user's settings, and reads all files.

        Raises:
            ConfigurationError: A setting is missing, or a file cannot be read or is malformed.
        """
        cert, key = f"{prefix}tls_cert", f"{prefix}tls_key"
        if (tls_cert is None) != (tls_key is None):
            given, missing = (cert, key) if tls_key is None else (key, cert)
            raise ConfigurationError(f"{given} is given and {missing} is not; expected both; give {_option(missing)}")
        if tls_client_ca is not None and tls_cert is None:
            raise ConfigurationError(
                f"{prefix}tls_client_ca is given without {cert}; expected the server's own certificate too; give "
                f"{_option(cert)} and {_option(key)}"
            )
        tls = None
        if tls_cert is not None and tls_key is not None:
            tls = ServerTls(cert=tls_cert, key=tls_key, client_ca=tls_client_ca, prefix=prefix)
            tls.check()
        tokens = None if tokens_file is None else TokenFile(tokens_file)
        return cls(tls=tls, tokens=tokens, insecure=insecure, prefix=prefix)

    def check_address(self, address: str) -> None:
        """Refuses to serve other machines without TLS, unless `insecure` is set.

        Args:
            address: The address to serve.

        Raises:
            ConfigurationError: The address is malformed, or other machines can reach it without TLS while `insecure` is
                False.
        """
        parsed = parse_listening_address(address)
        if self.tls is None and not self.insecure and not parsed.is_local:
            raise ConfigurationError(
                f"the address {address!r} can be reached from other machines and has no TLS: anyone on the network "
                "could read and control everything; expected localhost, a unix socket, or TLS; give "
                f"{_option(f'{self.prefix}tls_cert')} and {_option(f'{self.prefix}tls_key')} (rollcast certs makes "
                "them), or --insecure on a network you trust"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The TLS and token of a client. It reads its files again for every channel. The default is plain TCP.

    Attributes:
        tls_ca: The authorities of the server's certificate, in PEM; None: plain TCP.
        tls_cert: The client's certificate, for servers with mutual TLS.
        tls_key: The key of the certificate.
        token: The token to send. It is never shown.
        token_file: A file with the token, in place of `token`.
        insecure: Whether to send the token to other machines without TLS.

    Raises:
        ConfigurationError: A required setting is missing, or the token is malformed.
    """

    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_key is None else ("tls_key", "tls_cert")
            raise ConfigurationError(f"{given} is given and {missing} is not; expected both; give {_option(missing)}")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ConfigurationError(
                "tls_cert is given without tls_ca; expected the authority of the learner's certificate; give --tls-ca"
            )
        if self.token is not None and self.token_file is not None:
            raise ConfigurationError("token and token_file are both given; expected one of them; omit one")
        if self.token is not None:
            check_token(self.token, "token")

    def token_for(self, address: str) -> str | None:
        """Returns the token to send to an address; None if the client has no token.

        Raises:
            ConfigurationError: The file cannot be read or has no token, or the token would be sent without TLS.
        """
        parsed = parse_address(address)
        if parsed.path is not None or (self.token is None and self.token_file is None):
            return None
        if self.tls_ca is None and not self.insecure and not parsed.is_local:
            raise ConfigurationError(
                f"a token would be sent to {address!r} without TLS, so anyone on the network path could read it; "
                "expected TLS or this machine; give --tls-ca, or --insecure on a network you trust"
            )
        if self.token_file is None:
            return self.token
        return check_token(read_secret(self.token_file).strip(), f"the token in {str(self.token_file)!r}")

    def check_files(self) -> None:
        """Reads and checks the TLS files.

        Raises:
            ConfigurationError: A file cannot be read or is not PEM, or certificate and key do not match.
        """
        if self.tls_ca is not None:
            _check_authority(self.tls_ca, "tls_ca")
        if self.tls_cert is not None and self.tls_key is not None:
            _check_pair(self.tls_cert, self.tls_key, "")


PLAIN_SERVER = ServerSecurity()
PLAIN_CLIENT = ClientSecurity()


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_pair(cert: Path, key: Path, prefix: str) -> None:
    try:
        for path in (cert, key):
            read_named_file(path)  # OpenSSL would read an endless one to its end
        # Without this password, OpenSSL would prompt for one in the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{prefix}tls_cert {str(cert)!r} and {prefix}tls_key {str(key)!r} cannot be used ({_reason(error)}); "
            "expected a certificate in PEM and its key without a password; correct the paths or the files"
        ) from error


def _check_authority(path: Path, name: str) -> None:
    try:
        read_named_file(path)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{name} {str(path)!r} cannot be used ({_reason(error)}); expected certificates of authorities in PEM; "
            "correct the path or the file"
        ) from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
