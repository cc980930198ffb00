"""Exits with 0 if and only if a learner serves: `python -m rollcast.services.client.health_probe ADDRESS [SERVICE]`.

For health checks, which ask every few seconds: it imports the standard library only, and speaks just enough HTTP/2 for
one `grpc.health.v1.Health/Check`. So an interpreter that looks for no packages (`python -I -S`) can run it as a file,
for a tenth of the processor time that importing gRPC takes.

For a server with TLS, the variable ROLLCAST_TLS_CA names the authorities; ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY name
the client's certificate and key for mutual TLS, as for every other client.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

_TIMEOUT_S = 10.0
# Limit for one frame; the answer of a health check has 7 bytes.
_MAX_BYTES = 1 << 16

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER_BYTES = 9
# RFC 9113, section 6
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
# HealthCheckResponse.ServingStatus; proto3 leaves a zero out.
_STATUSES = {b"": "UNKNOWN", b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING", b"\x08\x03": "SERVICE_UNKNOWN"}


class _NoAnswerError(Exception):
    """The server's bytes are not the expected answer."""


def probe(address: str, service: str = "", *, environment: Mapping[str, str] | None = None) -> str | None:
    """Asks a learner whether it serves.

    Args:
        address: "host:port", "unix:/path", or "file:/path" of a file that has the address.
        service: A service's full name; empty: the whole server.
        environment: The variables ROLLCAST_TLS_CA, ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY, which name files; None:
            plain TCP.

    Returns:
        None if it serves, else the reason on one line.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        with _connect(address, environment or {}, deadline) as connection:
            status = _check(connection, service, deadline)
    except _NoAnswerError as error:
        return (
            f"{address} does not answer as a learner does: {error}; expected one; it may want TLS, or be another server"
        )
    except (OSError, ValueError) as error:
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


def _connect(address: str, environment: Mapping[str, str], deadline: float) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_left(deadline))
        try:
            connection.connect(address.removeprefix("unix:").removeprefix("//"))
        except BaseException:
            connection.close()
            raise
        return connection
    server_name = ""
    if address.startswith("file:"):
        address, server_name = _read_rendezvous(address.removeprefix("file:"))
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), _left(deadline))
    # Without TLS_CA, the other variables are for the server beside this process, not for this client.
    authorities = environment.get("ROLLCAST_TLS_CA")
    if not authorities:
        return connection
    try:
        import ssl

        context = ssl.create_default_context(cafile=authorities)
        context.set_alpn_protocols(["h2"])
        certificate = environment.get("ROLLCAST_TLS_CERT")
        if certificate:
            context.load_cert_chain(certificate, environment.get("ROLLCAST_TLS_KEY"), password="")
        return context.wrap_socket(connection, server_hostname=server_name or host.strip("[]"))
    except BaseException:
        connection.close()
        raise


def _read_rendezvous(path: str) -> tuple[str, str]:
    """Returns the address in a file that a learner has written, and the name in its certificate, or ""."""
    import json

    with open(path, encoding="utf-8") as file:  # noqa: PTH123  # pathlib takes longer to import than to use
        content = json.load(file)
    if not isinstance(content, dict) or not isinstance(content.get("address"), str):
        raise ValueError("the file has no address")  # noqa: TRY004  # what `probe` expects
    return content["address"], str(content.get("server_name", ""))


def _check(connection: socket.socket, service: str, deadline: float) -> str:
    """Makes the call and returns the status by name."""
    name = service.encode()
    if len(name) > 100:
        raise ValueError(f"a service's name has {len(name)} bytes; expected at most 100")
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    headers = b"\x83\x86" + b"".join(  # :method POST, :scheme http
        b"\x00" + bytes([len(key)]) + key + bytes([len(value)]) + value
        for key, value in (
            (b":path", b"/grpc.health.v1.Health/Check"),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"grpc-timeout", b"%dS" % _TIMEOUT_S),
        )
    )
    # All of the call at once: the server never waits for the rest of it.
    connection.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0)
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, b"\x00" + len(request).to_bytes(4, "big") + request)
    )
    answer = b""
    while True:
        kind, flags, stream, payload = _read_frame(connection, deadline)
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _DATA and stream == 1:
            answer += payload
            # A message: the flag for compression, 0; its length; its bytes.
            if len(answer) >= 5 and len(answer) >= 5 + int.from_bytes(answer[1:5], "big"):
                return _STATUSES.get(answer[5:], "UNKNOWN")
        if kind == _GOAWAY or (kind == _RST_STREAM and stream == 1):
            raise _NoAnswerError("it closed the call")
        if stream == 1 and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            raise _NoAnswerError("it refused the call")


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _read_frame(connection: socket.socket, deadline: float) -> tuple[int, int, int, bytes]:
    header = _read(connection, _FRAME_HEADER_BYTES, deadline)
    n_bytes = int.from_bytes(header[:3], "big")
    if n_bytes > _MAX_BYTES:
        raise _NoAnswerError("it does not speak HTTP/2")
    payload = _read(connection, n_bytes, deadline)
    return header[3], header[4], int.from_bytes(header[5:], "big") & 0x7FFFFFFF, payload


def _read(connection: socket.socket, n_bytes: int, deadline: float) -> bytes:
    read = b""
    while len(read) < n_bytes:
        connection.settimeout(_left(deadline))
        piece = connection.recv(n_bytes - len(read))
        if not piece:
            raise _NoAnswerError("it closed the connection")
        read += piece
    return read


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(f"no answer within {_TIMEOUT_S:.0f} s")
    return left_s


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # no traceback: a health check may be interrupted at any time
        sys.exit(128 + signal.SIGINT)
