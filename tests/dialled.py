"""Actors that dial in at a learner by hand: a test says what they send, and reads what they are told."""

from typing import Any

from rollcast.services.client.client import LearnerClient
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.joining.join import JoinOffer
from rollcast.services.rollouts.rollouts import StreamProgress
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.rollouts import CARTPOLE_LIKE, make_rollout


class DialledActor:
    """An actor with an open stream.

    Attributes:
        acting_state: What it reports that it does; None: it reports nothing.
        agreement: What the learner agreed to.
        progress: What it was told last.
    """

    def __init__(
        self,
        address: str,
        actor_id: str = "a",
        *,
        process_nonce: int = 1,
        spaces: EnvironmentSpaces = CARTPOLE_LIKE,
        acting_state: ActingState | None = None,
        **offered: Any,
    ) -> None:
        self.acting_state = acting_state
        self._client = LearnerClient(address)
        given = {"actor_id": actor_id, "process_nonce": process_nonce, "spaces": spaces, "n_envs": 2} | offered
        self.agreement = self._client.join(JoinOffer(network="auto", software_version="1", **given))
        self._uplink = self._client.open_rollout_stream(
            actor_id,
            self.agreement.incarnation,
            activity=None if acting_state is None else self._activity,
            activity_interval_s=self.agreement.activity_interval_s,
        )
        self._answers = self._uplink.responses()
        self.progress: StreamProgress = next(self._answers)

    def send(self, *sequences: int, **changes: Any) -> None:
        """Sends rollouts, and waits until each is acknowledged."""
        for sequence in sequences:
            self._uplink.send(make_rollout(sequence=sequence, **changes))
            self.progress = next(self._answers)
            assert self.progress.acknowledged_sequence == sequence

    def _activity(self) -> ActorActivity:
        assert self.acting_state is not None
        return ActorActivity(state=self.acting_state, seconds=(1.0,) * len(ActingState))

    def close(self) -> None:
        """Goes away without a word."""
        self._uplink.cancel()
        self._client.close()
