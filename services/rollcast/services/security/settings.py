"""Defines the settings of TLS and tokens, for servers and for clients. Imports no grpc."""

from pathlib import Path

from pydantic import Field, SecretStr

from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.settings import ProcessSettings


class ServerSecuritySettings(ProcessSettings):
    """The settings of a server's TLS and tokens."""

    address: str
    tls_cert: Path | None = Field(
        None,
        description="Serve with TLS: the certificate file, in PEM. It is read again when it changes.",
        json_schema_extra=FREE,
    )
    tls_key: Path | None = Field(
        None,
        description="The key file for --tls-cert, in PEM, without a password.",
        json_schema_extra=FREE,
    )
    tls_client_ca: Path | None = Field(
        None,
        description="Mutual TLS: clients need a certificate from one of the authorities in this file.",
        json_schema_extra=FREE,
    )
    tokens_file: Path | None = Field(
        None,
        description="Clients need one of the tokens in this file. Its lines are role:token, with the roles actor, "
        "viewer and operator. It is read again when it changes.",
        json_schema_extra=FREE,
    )
    insecure: bool = Field(
        False,
        description="Serve other machines without TLS. Everyone on the network can then read and steer.",
        json_schema_extra=FREE,
    )

    def server_security(self) -> ServerSecurity:
        """Makes the server's security, and reads the files.

        Raises:
            ConfigurationError: A file cannot be used, or the address is open to other machines without TLS and
                `insecure` is not set.
        """
        security = ServerSecurity.from_files(
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
            tokens_file=self.tokens_file,
            insecure=self.insecure,
        )
        security.check_address(self.address)
        return security


class ClientSecuritySettings(ProcessSettings):
    """The settings of a client's TLS and token."""

    tls_ca: Path | None = Field(
        None, description="Connect with TLS: a file with the authorities of the learner's certificate, in PEM."
    )
    tls_cert: Path | None = Field(None, description="This client's certificate, for a learner with mutual TLS.")
    tls_key: Path | None = Field(None, description="The key file for --tls-cert, in PEM, without a password.")
    token: SecretStr | None = Field(
        None,
        description="The token for a learner that demands one. Rather set ROLLCAST_TOKEN or --token-file: everyone on "
        "this machine sees command lines.",
    )
    token_file: Path | None = Field(None, description="A file with the token, read at every connection.")
    insecure: bool = Field(False, description="Also send the token to other machines without TLS.")

    def client_security(self) -> ClientSecurity:
        """Makes the client's security; the files are read when a connection is made.

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
