"""Exits with 0 if and only if a learner serves: `python -m services.health_probe ADDRESS [SERVICE]`.

Made for Docker health checks: it imports neither numpy nor gymnasium. For a server with TLS, ROLLCAST_TLS_CA, and
ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY for one with mutual TLS, name the files, as they do for every other client.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.channel import make_channel
from services.error_status import error_from_rpc
from services.errors import RollcastError
from services.printable import printable
from services.security import PLAIN_CLIENT, ClientSecurity

_TIMEOUT_S: Final = 3.0


def probe(address: str, service: str = "", *, security: ClientSecurity = PLAIN_CLIENT) -> str | None:
    """Asks a learner whether it serves.

    Args:
        address: "host:port" or "unix:/path".
        service: A service's full name; empty: the whole server.
        security: Certificates; health asks for no token.

    Returns:
        None when it does, else why not, on one line.
    """
    try:
        with make_channel(address, security) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S).status
    except grpc.RpcError as error:
        return " ".join(str(error_from_rpc(error, address)).split())
    except RollcastError as error:
        return " ".join(str(error).split())
    if status == health_pb2.HealthCheckResponse.SERVING:
        return None
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    return f"{service or 'the server'} at {address} is {name}; expected SERVING; it may be starting or draining"


def main(arguments: Sequence[str]) -> int:
    """Runs the probe.

    Args:
        arguments: Address and, if wanted, service.

    Returns:
        The exit code: 0 serving, 1 not, 2 wrong arguments.
    """
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m services.health_probe ADDRESS [SERVICE]\n")
        return 2
    try:
        security = _security(os.environ)
    except RollcastError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    reason = probe(*arguments, security=security)
    if reason is not None:
        sys.stderr.write(f"{printable(reason)}\n")
    return 0 if reason is None else 1


def _security(environment: Mapping[str, str]) -> ClientSecurity:
    """Without ROLLCAST_TLS_CA the other files say how the process beside this one serves, not how to connect."""
    ca, cert, key = (environment.get(f"ROLLCAST_TLS_{name}") for name in ("CA", "CERT", "KEY"))
    if not ca:
        return PLAIN_CLIENT
    return ClientSecurity(tls_ca=Path(ca), tls_cert=Path(cert) if cert else None, tls_key=Path(key) if key else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
