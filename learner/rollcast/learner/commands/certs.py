"""`rollcast certs`: makes certificates and tokens for development."""

from typing import IO

from rollcast.learner.commands.certificates import make_certificates
from rollcast.learner.commands.printing import print_line
from rollcast.learner.settings.certs import CertsSettings


def certs(settings: CertsSettings, output: IO[str]) -> int:
    """Makes the files, prints how to use them, and returns the exit code.

    Raises:
        ConfigurationError: If one of the files exists or cannot be written.
    """
    make_certificates(settings.directory, hosts=settings.host, days=settings.days)
    folder = settings.directory
    for line in (
        f"made certificates and tokens in {folder}, valid for {settings.days:g} days",
        f"learner   --tls-cert {folder}/server.pem --tls-key {folder}/server.key --tls-client-ca {folder}/ca.pem "
        f"--tokens-file {folder}/tokens",
        *(
            f"{role:<9} --tls-ca {folder}/ca.pem --tls-cert {folder}/{role}.pem --tls-key {folder}/{role}.key "
            f"--token-file {folder}/{role}.token"
            for role in ("actor", "viewer", "operator")
        ),
        f"{folder}/ca.key can make further certificates: keep it secret, or delete it",
    ):
        print_line(output, line)
    return 0
