"""A relay as a whole: its server, its link to the learner, and its policies."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.metrics.families import Families
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.rendezvous import Announcement, announced
from rollcast.services.security.security import PLAIN_CLIENT, PLAIN_SERVER, ClientSecurity, ServerSecurity
from rollcast.services.server.server import GrpcServer, make_server
from rollcast.tools.relay.control import RefusingControl
from rollcast.tools.relay.intake import RelayIntake
from rollcast.tools.relay.link import LearnerLink
from rollcast.tools.relay.policies import RelayedEvaluations, RelayedPolicies

logger = logging.getLogger(__name__)

# Seconds between two checks of the learner and the actors.
_LOOK_S: Final = 0.25
# Seconds between two checks whether a learner on this machine serves.
_LEARNER_LOOK_S: Final = 0.02
# Seconds for actors to learn of the end of training, and for the acknowledgements of the last messages.
_END_S: Final = 5.0
_GRACE_S: Final = 1.0


class RollcastRelay:
    """Serves actors on behalf of a learner. One thread calls `start`, `run` and `close`, in this order.

    Args:
        address: The address to listen at: "host:port" (port 0: any free one) or "unix:/path".
        learner_addresses: The learner's addresses, tried in their order.
        relay_id: The relay's name, for display only.
        limits: The limits on the relay's clients.
        server_security: The certificates and tokens that the relay's clients need.
        client_security: The certificates and the token for the learner.
        announcement: The file that announces the relay's address to other machines; None: no file.
        encodings: The encodings of policies to ask the learner for, besides whole files.
        wait_s: The longest time that a rollout waits for other rollouts that share its message, in seconds; see
            `BundleLink`.
        connect_timeout_s: The longest wait for the learner at the start, in seconds.
        reconnect_timeout_s: The longest wait for a lost learner, in seconds.
    """

    def __init__(
        self,
        address: str,
        learner_addresses: Sequence[str],
        relay_id: str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        server_security: ServerSecurity = PLAIN_SERVER,
        client_security: ClientSecurity = PLAIN_CLIENT,
        announcement: Announcement | None = None,
        encodings: Collection[PolicyEncoding] = (),
        wait_s: float = 0.0,
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 600.0,
    ) -> None:
        self.relay_id = relay_id
        self._announcement = announcement
        self._announced = contextlib.ExitStack()
        self._stop = threading.Event()
        control = RefusingControl(relay_id, ", ".join(learner_addresses))
        self.policies = RelayedPolicies(control.refuse, self._stop, encodings)
        self.link = LearnerLink(
            learner_addresses,
            relay_id,
            security=client_security,
            wait_s=wait_s,
            connect_timeout_s=connect_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
            follower=self.policies,
            stop=self._stop,
        )
        self.intake = RelayIntake(relay_id, self.link, max_actors=limits.max_actors, policies=self.policies)
        self._server: GrpcServer = make_server(
            address,
            sink=self.intake,
            source=self.policies,
            control=control,
            evaluators=RelayedEvaluations(self.link.current, encodings),
            relays=self.intake,
            limits=limits,
            security=server_security,
        )

    @property
    def address(self) -> str:
        """The address at which the relay listens; for port 0, with the chosen port."""
        return self._server.address

    def start(self, learner_is_up: Callable[[], bool] = lambda: True) -> None:
        """Starts to serve, and to connect to the learner.

        Args:
            learner_is_up: Polled in this thread; the relay begins to connect when it returns True.

        Raises:
            AddressInUseError: Another process serves the address.
            ConfigurationError: The address cannot be used.
        """
        self._server.start()
        self._announced.enter_context(announced(self._server.address, self._announcement))
        self.policies.start()
        logger.info("relay %s serves at %s", self.relay_id, self.address)
        while not learner_is_up() and not self._stop.wait(_LEARNER_LOOK_S):
            pass
        self.link.start()

    def run(self, *, wait_for_next_run: bool = False) -> None:
        """Relays until training has ended, or `stop` is called.

        Args:
            wait_for_next_run: After training, continue with the learner's next run.

        Raises:
            RollcastError: The learner refused the relay, or was lost for good.
        """
        while not self._stop.wait(_LOOK_S):
            if self.link.error is not None:
                raise self.link.error
            if self.policies.ended and not wait_for_next_run:
                logger.info("training has ended")
                deadline = time.monotonic() + _END_S
                while self.intake.n_actors and time.monotonic() < deadline and not self._stop.wait(_LOOK_S):
                    pass
                return

    def stop(self) -> None:
        """Ends `run`. Any thread may call it; a signal handler needs `safe_in_handlers`."""
        self._stop.set()

    def close(self) -> None:
        """Ends the streams at their next rollout, reports this to the learner, and frees the address. Idempotent."""
        self._announced.close()
        self._server.drain()
        self._server.stop(_GRACE_S)
        self.link.close(_GRACE_S)
        self.policies.close()

    def collect(self) -> Families:
        """Returns the metrics of the relay, for Prometheus."""
        families = Families()
        families.gauge("relay_connected", "1 while the relay has a connection to its learner", self.link.is_open)
        families.gauge("relay_actors", "actors with a stream through the relay", self.intake.n_actors)
        families.gauge("relay_policy_version", "newest policy that the relay has", self.policies.version)
        families.counter("relay_rollouts", "forwarded rollouts", self.intake.n_rollouts)
        families.counter("relay_rollout_bytes", "bytes of the forwarded rollouts", self.intake.n_bytes)
        families.counter("relay_bundles", "messages that have carried rollouts to the learner", self.link.n_bundles)
        return families
