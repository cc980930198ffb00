"""Mutual TLS and tokens for learners and clients, from a folder of `rollcast certs`."""

import shutil
from collections.abc import Collection
from pathlib import Path

from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity, ServerSecurity
from rollcast.tools.certificates import make_certificates


def security_of(certs: Path | None, role: str) -> ClientSecurity:
    """Returns the security of a role; none without a folder."""
    if certs is None:
        return PLAIN_CLIENT
    files = {"tls_ca": "ca.pem", "tls_cert": f"{role}.pem", "tls_key": f"{role}.key", "token_file": f"{role}.token"}
    return ClientSecurity(**{name: certs / file for name, file in files.items()})


def server_security_of(certs: Path, *, without: Collection[str] = ()) -> ServerSecurity:
    """Returns the security of a server, from all files of a folder or without some."""
    files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem", "tokens_file": "tokens"}
    return ServerSecurity.from_files(**{name: certs / file for name, file in files.items() if name not in without})


def make_two(folder: Path) -> Path:
    """Makes two folders of certificates, `first` and `second`, and `in_use`, a copy of the first."""
    for name in ("first", "second"):
        make_certificates(folder / name)
    shutil.copytree(folder / "first", folder / "in_use")
    return folder


def calling(certs: Path, role: str) -> tuple[object, ...]:
    """Returns the options of a command that calls a learner."""
    own = ("--tls-cert", certs / f"{role}.pem", "--tls-key", certs / f"{role}.key")
    return ("--tls-ca", certs / "ca.pem", *own, "--token-file", certs / f"{role}.token")


def serving(certs: Path) -> tuple[object, ...]:
    """Returns the options of a command that serves."""
    own = ("--tls-cert", certs / "server.pem", "--tls-key", certs / "server.key")
    return (*own, "--tls-client-ca", certs / "ca.pem", "--tokens-file", certs / "tokens")
