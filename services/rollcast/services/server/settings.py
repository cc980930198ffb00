"""Defines the settings of a server's address file. The module does not import gRPC."""

from pathlib import Path

from rollcast.services.errors import ConfigurationError
from rollcast.services.rendezvous import Announcement
from rollcast.services.settings.new_files import check_new_file
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import ProcessSettings


class AnnouncementSettings(ProcessSettings):
    """The settings of the file to which a server writes its address."""

    address_file: Path | None = setting(
        None,
        "Write the listening address, with its port, to this file, and remove it at the end. Only its owner may read "
        "it. Clients on a shared file system use it as the address file:/path. Default: none.",
        FREE,
    )
    advertised_host: str = setting(
        "", "The host to name in --address-file. Default: the host in --address, or this machine's name.", FREE
    )
    tls_server_name: str = setting(
        "",
        "The name in --tls-cert that clients of --address-file expect. Use it if you made the certificate without "
        "knowing the machine. Default: the host's name.",
        FREE,
    )

    @property
    def advertises_host(self) -> bool:
        """True if `--advertised-host` has an effect without `--address-file`. A subclass may override this method."""
        return False

    def announcement(self) -> Announcement | None:
        """Returns the file and its contents; None: no file.

        Raises:
            ConfigurationError: A name is given without the file, or the file cannot be made.
        """
        if self.address_file is None:
            for option, value in (
                ("--advertised-host", self.advertised_host),
                ("--tls-server-name", self.tls_server_name),
            ):
                if value and not (option == "--advertised-host" and self.advertises_host):
                    raise ConfigurationError(
                        f"{option}: {value!r} is given without --address-file, which would contain it; expected both; "
                        f"give --address-file, or omit {option}"
                    )
            return None
        check_new_file(self.address_file, "--address-file")
        return Announcement(self.address_file, self.advertised_host, self.tls_server_name)
