"""The settings of a server that says in a file where it listens. Imports no grpc."""

from pathlib import Path

from rollcast.services.errors import ConfigurationError
from rollcast.services.rendezvous import Announcement
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import ProcessSettings


class AnnouncementSettings(ProcessSettings):
    """The settings of the file in which a server says where it listens."""

    address_file: Path | None = setting(
        None,
        "Write the listening address, with its port, to this file, and remove it at the end. Only its owner may read "
        "it. Clients on a shared file system use it as the address file:/path. Default: none.",
        FREE,
    )
    advertised_host: str = setting(
        "", "The host to name in --address-file. Default: the one that --address names, or this machine's name.", FREE
    )
    tls_server_name: str = setting(
        "",
        "The name in --tls-cert that clients of --address-file expect, where the machine was not known when the "
        "certificate was made. Default: the host's.",
        FREE,
    )

    @property
    def advertises_host(self) -> bool:
        """True if `--advertised-host` has an effect without `--address-file`; a subclass may override it."""
        return False

    def announcement(self) -> Announcement | None:
        """Returns the file, and what to write there; None: no file is written.

        Raises:
            ConfigurationError: A name is given without the file, or the file's folder does not exist.
        """
        if self.address_file is None:
            for option, value in (
                ("--advertised-host", self.advertised_host),
                ("--tls-server-name", self.tls_server_name),
            ):
                if value and not (option == "--advertised-host" and self.advertises_host):
                    raise ConfigurationError(
                        f"{option}: {value!r} is given without --address-file, in which it is written; expected both; "
                        f"give --address-file, or leave {option} out"
                    )
            return None
        if not self.address_file.parent.is_dir():
            raise ConfigurationError(
                f"--address-file: there is no folder {str(self.address_file.parent)!r}; expected one that exists; make "
                "it, or choose another file"
            )
        return Announcement(self.address_file, self.advertised_host, self.tls_server_name)
