"""Clients that look on: `python -m tests.soak.clients viewer ADDRESS` and `subscriber`; SIGTERM ends them."""

import argparse
from pathlib import Path

from rollcast.services.client.client import LearnerClient
from rollcast.services.security.security import ClientSecurity
from tests.certificates import security_of

# The seconds between new connections, as somebody at a terminal does.
_STATUSES_A_CONNECTION = 5
_POLICIES_A_CONNECTION = 200


def view(address: str, security: ClientSecurity) -> None:
    """Watches the status, and asks anew with a connection of its own now and then."""
    with LearnerClient(address, security=security) as watching:
        for i, _ in enumerate(watching.watch_status(1.0)):
            if i % _STATUSES_A_CONNECTION == 0:
                with LearnerClient(address, security=security) as asking:
                    asking.status()
                    asking.actors()


def subscribe(address: str, security: ClientSecurity) -> None:
    """Takes policies, and subscribes anew now and then."""
    while True:
        with LearnerClient(address, security=security) as client:
            subscription = client.subscribe_policy()
            for i, _ in enumerate(subscription):
                if i == _POLICIES_A_CONNECTION:
                    subscription.cancel()


def main() -> None:
    """Looks on until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.clients", description=__doc__)
    parser.add_argument("kind", choices=("viewer", "subscriber"))
    parser.add_argument("address")
    parser.add_argument("--certs", type=Path)
    options = parser.parse_args()
    if options.kind == "viewer":
        view(options.address, security_of(options.certs, "viewer"))
    else:
        # policies are for actors
        subscribe(options.address, security_of(options.certs, "actor"))


if __name__ == "__main__":
    main()
