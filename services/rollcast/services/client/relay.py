"""A relay's calls of its learner: values in, values out, errors from the tree."""

from collections.abc import Iterable

from rollcast.services.client.client import LearnerClient
from rollcast.services.joining.join import Relay
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.relayed import EncodedSubscription
from rollcast.services.streams.bundle_link import BundleLink


class RelayClient(LearnerClient):
    """A client of a learner, for a relay, which may be closed while calls begin. Safe from many threads.

    Its arguments are those of `LearnerClient`.
    """

    def open_bundles(self, relay: Relay, *, waiting: Iterable[Relay] = (), wait_s: float = 0.0) -> BundleLink:
        """Opens the stream for the rollouts of all actors, which has no deadline; its `run` raises its errors.

        Args:
            relay: This relay.
            waiting: The relays that wait until this one has a learner.
            wait_s: The longest time that a rollout waits for others that travel with it, in seconds; see `BundleLink`.
        """
        return BundleLink(self._channel, self.address, relay, waiting=waiting, wait_s=wait_s)

    def subscribe_encoded(
        self, assembler: PolicyAssembler, *, evaluator_id: str = "", incarnation: int = 0, after_version: int = 0
    ) -> EncodedSubscription:
        """Subscribes to new policies as the bytes they are, without a deadline; iterating raises the errors.

        Args:
            assembler: Says which encodings to ask for, over several subscriptions; it keeps the last file.
            evaluator_id: An evaluator's name: then only the versions that it is to evaluate come. Empty: all versions.
            incarnation: The evaluator's incarnation.
            after_version: Skip versions up to this one; of an evaluator: the version that it plays with.

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
