"""The settings of TLS and tokens: one set for who serves, one for who connects. Imports no grpc."""

from pathlib import Path

from pydantic import Field, SecretStr

from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.settings import ProcessSettings


class ServerSecuritySettings(ProcessSettings):
    """What a server asks of its clients."""

    address: str
    tls_cert: Path | None = Field(
        None,
        description="Serve with TLS: the certificate, in PEM. It is read again when it changes.",
        json_schema_extra=FREE,
    )
    tls_key: Path | None = Field(
        None,
        description="The key of --tls-cert, in PEM, without a password.",
        json_schema_extra=FREE,
    )
    tls_client_ca: Path | None = Field(
        None,
        description="Mutual TLS: clients need a certificate of one of the authorities in this file.",
        json_schema_extra=FREE,
    )
    tokens_file: Path | None = Field(
        None,
        description="Clients need one of the tokens in this file of lines role:token, with the roles actor, viewer and "
        "operator. It is read again when it changes.",
        json_schema_extra=FREE,
    )
    insecure: bool = Field(
        False,
        description="Serve other machines without TLS, on a network where everybody may read and steer.",
        json_schema_extra=FREE,
    )

    def server_security(self) -> ServerSecurity:
        """Reads the files.

        Raises:
            ConfigurationError: One cannot be used, or the address is open to other machines without TLS and that was
                not asked for.
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
    """How a client connects."""

    tls_ca: Path | None = Field(
        None, description="Connect with TLS: the authorities that the learner's certificate may come from, in PEM."
    )
    tls_cert: Path | None = Field(None, description="This client's certificate, for a learner with mutual TLS.")
    tls_key: Path | None = Field(None, description="The key of --tls-cert, in PEM, without a password.")
    token: SecretStr | None = Field(
        None,
        description="What the learner lets this client in with. Better in the environment, as ROLLCAST_TOKEN, or in "
        "--token-file: everybody on this machine sees command lines.",
    )
    token_file: Path | None = Field(None, description="A file with the token, read at every connection.")
    insecure: bool = Field(False, description="Send the token to other machines without TLS, too.")

    def client_security(self) -> ClientSecurity:
        """Puts them together; the files are read when a connection is made.

        Raises:
            ConfigurationError: Something is missing, or the token cannot be one.
        """
        return ClientSecurity(
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token=None if self.token is None else self.token.get_secret_value(),
            token_file=self.token_file,
            insecure=self.insecure,
        )
