"""Defines the settings of TLS and tokens, for servers and for clients. The module does not import gRPC."""

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr

from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import ProcessSettings


class ServerSecuritySettings(ProcessSettings):
    """The settings of a server's TLS and tokens."""

    address: str
    tls_cert: Path | None = setting(
        None,
        "Serve with TLS, with this certificate (PEM). The file is read again when it changes. Default: no TLS.",
        FREE,
    )
    tls_key: Path | None = setting(
        None, "The private key of --tls-cert (PEM, without a password). Default: none, without TLS.", FREE
    )
    tls_client_ca: Path | None = setting(
        None,
        "Mutual TLS: require client certificates from one of the authorities in this file (PEM). "
        "Default: none required.",
        FREE,
    )
    tokens_file: Path | None = setting(
        None,
        "Require a token from this file. Each line is ROLE:TOKEN, with the role actor, viewer or "
        "operator. The file is read again when it changes. Default: no token required.",
        FREE,
    )
    insecure: bool = setting(
        False,
        "Allow serving other machines without TLS: everybody on the network can then read and control the run.",
        FREE,
    )

    def server_security(self) -> ServerSecurity:
        """Makes the server's security, and reads the files.

        Raises:
            ConfigurationError: A file cannot be used, or the address is open to other machines without TLS and
                `insecure` is not set.
        """
        security = ServerSecurity.from_files(**self.security_files())
        security.check_address(self.address)
        return security

    def security_files(self) -> dict[str, Any]:
        """Returns the arguments of `ServerSecurity.from_files`, for a child process."""
        return {
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "tls_client_ca": self.tls_client_ca,
            "tokens_file": self.tokens_file,
            "insecure": self.insecure,
        }


class ClientSecuritySettings(ProcessSettings):
    """The settings of a client's TLS and token."""

    tls_ca: Path | None = Field(
        None,
        description="Connect with TLS; the learner's certificate must come from one of the authorities in this "
        "file (PEM). Default: no TLS.",
    )
    tls_cert: Path | None = Field(
        None, description="This client's certificate (PEM), for a learner with mutual TLS. Default: none."
    )
    tls_key: Path | None = Field(
        None, description="The private key of --tls-cert (PEM, without a password). Default: none."
    )
    token: SecretStr | None = Field(
        None,
        description="The token to send to the learner. Prefer ROLLCAST_TOKEN or --token-file: everybody on this "
        "machine can see command lines. Default: none.",
    )
    token_file: Path | None = Field(
        None, description="A file with the token to send; it is read at every connection. Default: none."
    )
    insecure: bool = Field(False, description="Allow sending the token to other machines without TLS.")

    def client_security(self) -> ClientSecurity:
        """Makes the client's security, which reads its files for each connection.

        Raises:
            ConfigurationError: A setting is missing, or the token is malformed.
        """
        return ClientSecurity(
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token=None if self.token is None else self.token.get_secret_value(),
            token_file=self.token_file,
            insecure=self.insecure,
        )


class ServedSecuritySettings(ProcessSettings):
    """The TLS and token settings of a server in a process that is also a client. Their names begin with `serve`."""

    insecure: bool
    serve_tls_cert: Path | None = setting(None, "Serve with TLS, with this certificate (PEM). Default: no TLS.", FREE)
    serve_tls_key: Path | None = setting(
        None, "The private key of --serve-tls-cert (PEM). Default: none, without TLS.", FREE
    )
    serve_tls_client_ca: Path | None = setting(
        None, "Require client certificates from one of these authorities (PEM). Default: none required.", FREE
    )

    @property
    def required_tokens(self) -> Path | None:
        """The file with the accepted tokens; None: clients need no token."""
        return None

    def security_at(self, address: str) -> ServerSecurity:
        """Makes the server's security, and reads the files.

        Args:
            address: The address of the server.

        Raises:
            ConfigurationError: A file cannot be used, or the address is open to other machines without TLS and
                `insecure` is not set.
        """
        security = ServerSecurity.from_files(
            tls_cert=self.serve_tls_cert,
            tls_key=self.serve_tls_key,
            tls_client_ca=self.serve_tls_client_ca,
            tokens_file=self.required_tokens,
            insecure=self.insecure,
            prefix="serve_",
        )
        security.check_address(address)
        return security


class ServingClientSecuritySettings(ClientSecuritySettings, ServedSecuritySettings):
    """The settings of TLS and tokens of a client that is also a server."""

    insecure: bool = Field(
        False, description="Allow serving other machines without TLS, and sending the token to them without TLS."
    )


class RelayingSecuritySettings(ServingClientSecuritySettings):
    """The settings of `ServingClientSecuritySettings` for a process that only serves, such as a relay."""

    address: str

    def server_security(self) -> ServerSecurity:
        """Makes the server's security, and reads the files.

        Raises:
            ConfigurationError: See `security_at`.
        """
        return self.security_at(self.address)
