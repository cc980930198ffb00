"""Keeps rollouts until the learner has acknowledged them, across reconnects."""

import contextlib
from collections import deque

from rollcast.services.errors import NotReadyError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.streams.uplink import RolloutUplink


class Outbox:
    """The unacknowledged rollouts, in order, and the stream that carries them.

    Invariant: every rollout given to `put` is either acknowledged, or kept and sent again on the next stream.

    Every call needs the connection's lock.

    Attributes:
        uplink: The newest stream; None: no stream. The actor sends no message on it before the learner's first answer.
        is_open: Whether the learner has answered on this stream.
        acknowledged: The sequence of the last acknowledged rollout; 0: none.
        credit_sequence: The sequence of the last rollout with credit.
        min_policy_version: The oldest policy version that a new rollout may use.
    """

    def __init__(self) -> None:
        self.uplink: RolloutUplink | None = None
        self.is_open = False
        self.acknowledged = 0
        self.credit_sequence = 0
        self.min_policy_version = 0
        self._rollouts: deque[Rollout] = deque()

    def __len__(self) -> int:
        """Returns the number of unacknowledged rollouts."""
        return len(self._rollouts)

    def attach(self, uplink: RolloutUplink | None) -> None:
        """Switches to a newly opened stream; None: the last stream was lost."""
        self.uplink, self.is_open = uplink, False

    def put(self, rollout: Rollout) -> None:
        """Keeps a rollout, and sends it if the stream is open."""
        self._rollouts.append(rollout)
        if self.uplink is not None and self.is_open:
            # A stream that has just ended accepts nothing. The next stream sends the kept rollouts.
            with contextlib.suppress(NotReadyError):
                self.uplink.send(rollout)

    def take(self, progress: StreamProgress) -> bool:
        """Applies an answer of the learner. After a stream's first answer, sends the unacknowledged rollouts again.

        Returns:
            Whether another rollout was acknowledged.

        Raises:
            NotReadyError: The stream has just ended.
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
