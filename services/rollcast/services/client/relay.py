"""A relay's typed client of its learner."""

from collections.abc import Iterable

from rollcast.services.client.client import LearnerClient
from rollcast.services.joining.join import Relay
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.relayed import EncodedSubscription
from rollcast.services.streams.bundle_link import BundleLink


class RelayClient(LearnerClient):
    """A relay's client of its learner. One thread may close it while other threads make calls.

    The arguments are the same as for `LearnerClient`.
    """

    def open_bundles(self, relay: Relay, *, waiting: Iterable[Relay] = (), wait_s: float = 0.0) -> BundleLink:
        """Opens the stream for the rollouts of all actors, without a deadline. `BundleLink.run` raises the errors.

        Args:
            relay: This relay.
            waiting: The relays that wait until this relay reaches a learner.
            wait_s: The longest time that a rollout waits for others in its bundle, in seconds; see `BundleLink`.
        """
        return BundleLink(self._channel, self.address, relay, waiting=waiting, wait_s=wait_s)

    def subscribe_encoded(
        self, assembler: PolicyAssembler, *, evaluator_id: str = "", incarnation: int = 0, after_version: int = 0
    ) -> EncodedSubscription:
        """Subscribes to new policies as encoded bytes, without a deadline. The iteration raises the errors.

        Args:
            assembler: Determines the accepted encodings, and keeps the last file across subscriptions.
            evaluator_id: An evaluator's name. The learner then sends only versions to evaluate. Empty: all versions.
            incarnation: The evaluator's incarnation.
            after_version: Skip versions up to this version; for an evaluator, the version that it is evaluating.

        Raises:
            LearnerUnreachableError: The connection was just closed.
        """
        return EncodedSubscription(
            self._channel,
            self.address,
            assembler=assembler,
            evaluator_id=evaluator_id,
            incarnation=incarnation,
            after_version=after_version,
        )
