"""Exits with 0 only if a learner serves: `python -m rollcast.services.client.health_probe ADDRESS [SERVICE]`.

Health checks run every few seconds, so the probe saves processor time. It imports only gRPC: neither the stubs of the
health service nor rollcast's client. An interpreter can run the probe as a file.

For a server with TLS, set ROLLCAST_TLS_CA to the file of the certificate authorities. For mutual TLS, also set
ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY to the client's certificate and key.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import grpc

_TIMEOUT_S = 10.0
# A file of certificates or of an address. The authorities of a whole operating system have 0.3 MB.
_MAX_FILE_BYTES = 1 << 22
# HealthCheckResponse.ServingStatus; proto3 omits a zero.
_STATUSES = {b"": "UNKNOWN", b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING", b"\x08\x03": "SERVICE_UNKNOWN"}


def probe(address: str, service: str = "", *, environment: Mapping[str, str] | None = None) -> str | None:
    """Asks a learner whether it serves.

    Args:
        address: "host:port", "unix:/path", or "file:/path" of a file that contains the address.
        service: A service's full name; empty: the whole server.
        environment: The variables ROLLCAST_TLS_CA, ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY, each the path of a file;
            None: plain TCP.

    Returns:
        None if the learner serves, otherwise the reason on one line.
    """
    try:
        with _connect(address, environment or {}) as channel:
            status = _check(channel, service)
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return (
                f"no learner answers at {address} ({details}); expected one that serves; it may require TLS, or be "
                "another server"
            )
        return (
            f"{address} does not report whether {service or 'the server'} serves ({code.name}: {details}); expected "
            "SERVING; it may have no such service, or be another server"
        )
    except (OSError, ValueError, RecursionError) as error:
        return f"no learner answers at {address} ({error or type(error).__name__}); expected one that serves"
    if status == "SERVING":
        return None
    return f"{service or 'the server'} at {address} is {status}; expected SERVING; it may be starting or draining"


def main(arguments: Sequence[str]) -> int:
    """Runs the probe.

    Args:
        arguments: The address and, optionally, the service.

    Returns:
        The exit code: 0 serving, 1 not serving, 2 wrong arguments.
    """
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m rollcast.services.client.health_probe ADDRESS [SERVICE]\n")
        return 2
    if bool(os.environ.get("ROLLCAST_TLS_CERT")) != bool(os.environ.get("ROLLCAST_TLS_KEY")):
        sys.stderr.write("ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY: one is given and the other is not; give both\n")
        return 2
    reason = probe(*arguments, environment=os.environ)
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
    return 0 if reason is None else 1


def _connect(address: str, environment: Mapping[str, str]) -> grpc.Channel:
    # A proxy is for the outside world, not for a learner; compose networks often set http_proxy.
    options: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]
    if address.startswith("unix:"):
        # gRPC would send the percent-encoded path as :authority, which other languages' servers refuse.
        return grpc.insecure_channel(address, options=[*options, ("grpc.default_authority", "localhost")])
    if address.startswith("file:"):
        address, server_name = _read_rendezvous(address.removeprefix("file:"))
        options += [("grpc.ssl_target_name_override", server_name)] if server_name else []
    int(address.rpartition(":")[2])  # gRPC would use a default port if the port is missing
    # Without TLS_CA, the other variables are for the server beside this process, not for this client.
    if not environment.get("ROLLCAST_TLS_CA"):
        return grpc.insecure_channel(address, options=options)
    authorities, key, certificate = (_read(environment.get(f"ROLLCAST_TLS_{name}")) for name in ("CA", "KEY", "CERT"))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities, key, certificate), options=options)


def _read(path: str | None) -> bytes | None:
    """Returns the content of a file, without waiting for a pipe; raises ValueError if it is too large."""
    if not path:
        return None

    def open_now(path: str, flags: int) -> int:
        # Without O_NONBLOCK, the open of a pipe waits for a process that writes to it. Windows has no such flag.
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=open_now) as file:  # pathlib takes longer to import than to use
        content = file.read(_MAX_FILE_BYTES + 1) or b""
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"{path} has more than {_MAX_FILE_BYTES:,} bytes")
    return content


def _read_rendezvous(path: str) -> tuple[str, str]:
    """Returns the address in a learner's address file, and the name in its certificate, or ""."""
    content = json.loads(_read(path) or b"")
    if not isinstance(content, dict) or not isinstance(content.get("address"), str):
        raise ValueError("the file has no address")  # noqa: TRY004  # what `probe` expects
    return content["address"], str(content.get("server_name", ""))


def _check(channel: grpc.Channel, service: str) -> str:
    """Makes the call and returns the name of the status."""
    name = service.encode()
    if len(name) > 100:
        raise ValueError(f"a service's name has {len(name)} bytes; expected at most 100")
    # HealthCheckRequest: its field 1, the name
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=None, response_deserializer=None)
    return _STATUSES.get(check(request, timeout=_TIMEOUT_S), "UNKNOWN")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # no traceback: a health check may be interrupted at any time
        sys.exit(128 + signal.SIGINT)
