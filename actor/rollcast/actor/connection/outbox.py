"""Keeps rollouts until the learner has acknowledged them, over every reconnect."""

import contextlib
from collections import deque

from rollcast.services.errors import NotReadyError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.streams.uplink import RolloutUplink


class Outbox:
    """The rollouts that are not acknowledged, in order, and the stream that carries them.

    Invariant: every rollout given to `put` is acknowledged, or kept and sent again on the next stream.

    Every call needs the connection's lock.

    Attributes:
        uplink: The newest stream; None: there is none. Before the learner's first answer the actor sends no message on
            it.
        is_open: Whether the learner has answered on this stream.
        acknowledged: Sequence number of the last rollout that was acknowledged; 0: none.
        credit_sequence: The last rollout that the learner has asked for.
        min_policy_version: The oldest policy that a new rollout may be played with.
    """

    def __init__(self) -> None:
        self.uplink: RolloutUplink | None = None
        self.is_open = False
        self.acknowledged = 0
        self.credit_sequence = 0
        self.min_policy_version = 0
        self._rollouts: deque[Rollout] = deque()

    def __len__(self) -> int:
        """Returns how many rollouts are not acknowledged."""
        return len(self._rollouts)

    def attach(self, uplink: RolloutUplink | None) -> None:
        """Changes to a stream that was just opened; None: the last one was lost."""
        self.uplink, self.is_open = uplink, False

    def put(self, rollout: Rollout) -> None:
        """Keeps a rollout, and sends it if the stream is open."""
        self._rollouts.append(rollout)
        if self.uplink is not None and self.is_open:
            # A stream that has just ended takes no more: the next one sends what is kept.
            with contextlib.suppress(NotReadyError):
                self.uplink.send(rollout)

    def take(self, progress: StreamProgress) -> bool:
        """Takes an answer of the learner; on the stream's first answer, sends again what is not acknowledged.

        Returns:
            Whether another rollout was acknowledged.

        Raises:
            NotReadyError: If the stream has just ended.
        """
        while self._rollouts and self._rollouts[0].sequence <= progress.acknowledged_sequence:
            self._rollouts.popleft()
        if self.uplink is not None and not self.is_open:
            for rollout in self._rollouts:
                self.uplink.send(rollout)
            self.is_open = True
        has_progressed = progress.acknowledged_sequence > self.acknowledged
        self.acknowledged = max(self.acknowledged, progress.acknowledged_sequence)
        self.credit_sequence = progress.credit_sequence
        self.min_policy_version = progress.min_policy_version
        return has_progressed

    def fail(self, failure: ActorFailure) -> None:
        """Sends the reason why the actor ends, if the stream is open."""
        if self.uplink is not None and self.is_open:
            self.uplink.fail(failure)
