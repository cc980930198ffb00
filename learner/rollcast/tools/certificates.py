"""`rollcast certs`: makes certificates and tokens for a learner and its clients, for development."""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollcast.learner.commands.printing import print_line
from rollcast.services.errors import ConfigurationError
from rollcast.services.security.tokens import Role
from rollcast.tools.settings import CertsSettings

# Certificates are valid from a little before now, because clocks differ.
_CLOCK_SKEW = datetime.timedelta(minutes=5)

_ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class _Issued:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


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


def make_certificates(directory: Path, *, hosts: Sequence[str] = (), days: float = 365) -> list[Path]:
    """Makes a new authority with certificates and tokens. Certificates of different authorities do not work together.

        ca.pem  ca.key                           the authority; its key can make further certificates
        server.pem  server.key                   for the learner: `localhost`, the loopback address and `hosts`
        actor.pem  actor.key                     for actors; likewise for viewers and operators
        tokens                                   for the learner: one token for each role
        actor.token, viewer.token, operator.token   the same tokens in a file each, for the clients

    Args:
        directory: The folder to write to; made if it is missing. Existing files are never overwritten.
        hosts: Further host names and IP addresses of the learner.
        days: Days until the certificates expire; with 0 or less they have expired already.

    Returns:
        The paths of the files.

    Raises:
        ConfigurationError: If one of the files exists or cannot be written.
    """
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    authority = _issue("rollcast development authority", None, until)
    server = _issue("rollcast learner", authority, until, hosts=(*_ALWAYS_NAMED, *hosts))
    pairs = {"ca": authority, "server": server}
    tokens = {role.value: secrets.token_urlsafe(32) for role in Role}
    for role in Role:
        pairs[role.value] = _issue(f"rollcast {role.value}", authority, until)
    files: dict[str, bytes] = {}
    for name, issued in pairs.items():
        files[f"{name}.pem"] = issued.certificate.public_bytes(serialization.Encoding.PEM)
        files[f"{name}.key"] = issued.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    files["tokens"] = "".join(f"{role}:{token}\n" for role, token in tokens.items()).encode()
    for role_name, token in tokens.items():
        files[f"{role_name}.token"] = f"{token}\n".encode()
    return _write(directory, files)


def _write(directory: Path, files: dict[str, bytes]) -> list[Path]:
    taken = [name for name in files if (directory / name).exists()]
    if taken:
        raise ConfigurationError(
            f"{str(directory)!r} has {', '.join(taken)} already; expected a folder without them; choose another "
            "folder, or remove these files, because certificates of different authorities do not work together"
        )
    written: list[Path] = []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            # created with mode 0600, so that other users can never read the file
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written.append(directory / name)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        # remove what was written, so that the same command works once there is room
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(
            f"the certificates cannot be written to {str(directory)!r}: {error.strerror}; expected a folder that this "
            "user can write to; choose another"
        ) from error
    return written


def _issue(name: str, authority: _Issued | None, until: datetime.datetime, *, hosts: Sequence[str] = ()) -> _Issued:
    """Makes a key and a certificate that the authority signs; without an authority, makes a new one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_key = key if authority is None else authority.key
    issuer = subject if authority is None else authority.certificate.subject
    since = min(datetime.datetime.now(datetime.UTC), until) - _CLOCK_SKEW
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if authority is None:
        # Python 3.13 trusts no authority without this extension.
        signs = x509.KeyUsage(
            key_cert_sign=True,
            crl_sign=True,
            **dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"), False
            ),
            **dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False),
        )
        builder = builder.add_extension(signs, critical=True)
    else:
        # CLIENT_AUTH for the server, too: the learner's health probe connects with the learner's certificate
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)]), critical=False
        )
    return _Issued(builder.sign(signing_key, hashes.SHA256()), key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigurationError(
            f"the host {host!r} cannot be in a certificate: {error}; expected a host name or an IP address such as "
            "'learner.example.org' or '192.0.2.7'; correct it"
        ) from error
