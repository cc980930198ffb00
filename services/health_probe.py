"""Exits with 0 if and only if a learner serves: `python -m services.health_probe ADDRESS [SERVICE]`.

Made for Docker health checks: it imports neither numpy nor gymnasium.
"""

import sys
from collections.abc import Sequence
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.channel import make_channel
from services.error_status import error_from_rpc
from services.errors import RollcastError

_TIMEOUT_S: Final = 3.0


def probe(address: str, service: str = "") -> str | None:
    """Asks a learner whether it serves.

    Args:
        address: "host:port" or "unix:/path".
        service: A service's full name; empty: the whole server.

    Returns:
        None when it does, else why not, on one line.
    """
    try:
        with make_channel(address) as channel:
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
    reason = probe(*arguments)
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
