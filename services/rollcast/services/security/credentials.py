"""Makes gRPC's credentials from TLS files. A server notices new files without a restart."""

import logging
import ssl
from collections.abc import Callable
from typing import TypeVar

import grpc

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.named_files import read_named_file
from rollcast.services.security.security import ClientSecurity, ServerTls
from rollcast.services.security.watched_files import WatchedFiles

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Makes the credentials of a server. The server checks for changed files before each handshake.

    New connections use the new certificate and authorities; open connections continue. If the new files are unusable,
    such as a certificate without its new key, the server logs a warning and keeps the old files.

    Args:
        tls: The files.

    Raises:
        ConfigurationError: The files cannot be used.
    """
    watched = WatchedFiles(tls.paths)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        return _renewed(lambda: _configuration(tls), tls) if watched.have_changed() else None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls),
        newer,  # type: ignore[arg-type]  # gRPC accepts None for "no newer files"; its stubs do not
        require_client_authentication=tls.client_ca is not None,
    )


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Makes the SSL context of a server without gRPC. Like `server_credentials`, it notices new files.

    Args:
        tls: The files.

    Raises:
        ConfigurationError: The files cannot be used.
    """
    watched = WatchedFiles(tls.paths)
    newest = first = _context(tls)

    def renew(connection: ssl.SSLObject, _name: str | None, _context_of_server: ssl.SSLContext) -> None:
        nonlocal newest
        if watched.have_changed():
            newest = _renewed(lambda: _context(tls), tls) or newest
        connection.context = newest

    first.sni_callback = renew
    return first


def _context(tls: ServerTls) -> ssl.SSLContext:
    tls.check()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # replaced between the check and now
        raise ConfigurationError(f"{error}; expected the files of TLS; restore them") from error
    return context


def _renewed(read: Callable[[], _T], tls: ServerTls) -> _T | None:
    """Reads changed files. If they cannot be used, logs a warning and returns None."""
    try:
        made = read()
    except ConfigurationError as error:
        _log.warning("the old certificate stays in use: %s", error)
        return None
    _log.info("read the certificate %s again", tls.cert)
    return made


def _configuration(tls: ServerTls) -> grpc.ServerCertificateConfiguration:
    tls.check()
    try:
        authorities = None if tls.client_ca is None else read_named_file(tls.client_ca)
        pair = (read_named_file(tls.key), read_named_file(tls.cert))
    except OSError as error:  # replaced between the check and now
        raise ConfigurationError(f"{error}; expected the files of TLS; restore them") from error
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)


def channel_credentials(security: ClientSecurity) -> grpc.ChannelCredentials | None:
    """Makes the credentials of a channel from the current files; None for plain TCP.

    Args:
        security: TLS and token of the client.

    Raises:
        ConfigurationError: The files cannot be used.
    """
    if security.tls_ca is None:
        return None
    security.check_files()
    try:
        authorities = read_named_file(security.tls_ca)
        cert = None if security.tls_cert is None else read_named_file(security.tls_cert)
        key = None if security.tls_key is None else read_named_file(security.tls_key)
    except OSError as error:  # replaced between the check and now
        raise ConfigurationError(f"{error}; expected the files of TLS; restore them") from error
    return grpc.ssl_channel_credentials(authorities, key, cert)
