"""The settings of `rollcast dashboard`. Imports neither torch nor grpc."""

from typing import ClassVar

from pydantic import Field

from rollcast.services.address import parse_listening_address, split_addresses
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.security.settings import ClientSecuritySettings
from rollcast.services.settings.addresses import ServerAddresses, WebAddress
from rollcast.services.settings.settings import LogLevel


class DashboardSettings(ClientSecuritySettings):
    """Serves a web page that shows the state of learners and their actors."""

    first_options: ClassVar = (
        *("learner_address", "listen_address", "token_file", "tls_ca", "read_only", "host_names", "insecure"),
        "log_level",
    )

    learner_address: ServerAddresses = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file. Separate "
        "several addresses with commas; each learner gets a page.",
    )
    listen_address: WebAddress = Field(
        "localhost:8080", description="The address to serve the page at, host:port (port 0: any free port)."
    )
    read_only: bool = Field(
        False, description="Show no buttons, even if the token is an operator's or the learner asks for no token."
    )
    host_names: str = Field(
        "",
        description="Host names under which browsers may request the page, separated by commas. localhost and IP "
        "addresses are always allowed. Default: none.",
    )
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for a learner's answer.")
    insecure: bool = Field(
        False,
        description="Allow serving the page to other machines, and sending the token to them without TLS. Everybody "
        "who reaches the page then has the rights of the token.",
    )
    log_level: LogLevel = Field("WARNING", description="Least severe messages to log, on stderr.")

    def learner_addresses(self) -> tuple[str, ...]:
        """Returns the learners' addresses.

        Raises:
            ConfigurationError: No address is given, one is given twice, or one is malformed.
        """
        return split_addresses(self.learner_address)

    def names(self) -> tuple[str, ...]:
        """Returns the host names under which browsers may request the page, besides localhost and IP addresses."""
        return tuple(part.strip() for part in self.host_names.split(",") if part.strip())

    def check_listen_address(self) -> None:
        """Refuses to serve other machines unless `insecure` is set.

        Raises:
            ConfigurationError: The address is malformed; or other machines reach it, and `insecure` is False.
        """
        check_page_address(self.listen_address, insecure=self.insecure)


def check_page_address(address: str, *, insecure: bool) -> None:
    """Refuses to serve a page to other machines unless the user allows it.

    Args:
        address: The address to serve it at.
        insecure: Whether the user allows it.

    Raises:
        ConfigurationError: The address is malformed; or other machines reach it, and `insecure` is False.
    """
    if not parse_listening_address(address).is_local and not insecure:
        raise ConfigurationError(
            f"the page at {address!r} can be reached from other machines and has no login: anyone who reaches it "
            "would have the rights of its token; expected localhost, perhaps behind a proxy with a login; on a network "
            "you trust, give a viewer's token and --insecure"
        )
