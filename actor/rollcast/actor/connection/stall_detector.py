"""Decides whether a silent learner is busy or a message was lost.

A flipped bit in the framing of HTTP/2 or gRPC can remove one message while the rest of the connection works. Neither a
digest nor keepalive finds this loss. After a long silence, an actor therefore asks the learner for its progress.
"""

import time

from rollcast.services.joining.join import JoinAgreement

# Seconds of silence after which the learner is asked.
SILENCE_S = 15.0
# Time for the learner's answer, in seconds. The acting thread asks, and must be able to stop.
ASK_TIMEOUT_S = 2.0
# The number of unanswered questions after which the actor reconnects. On a slow link, answers may never be in time.
_MAX_IN_VAIN = 3


class StallDetector:
    """Measures the silence of a learner on a stream. Every call needs the connection's lock.

    Each detected loss doubles the allowed silence, because the learner may only be slow.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._may_last_s = self._ask_after_s = SILENCE_S
        # The policy version in the learner's last answer; 0: it has not been asked on this stream.
        self._told_version = 0
        self._n_in_vain = 0

    def opened(self) -> None:
        """Resets the clock for a new stream, perhaps to another learner."""
        self._told_version = 0
        self.broken()

    def broken(self) -> None:
        """Restarts the clock after an answer of the learner, or a rollout of the actor."""
        self._since, self._ask_after_s = time.monotonic(), self._may_last_s
        self._n_in_vain = 0

    def progressed(self) -> None:
        """Notes that a message has arrived, such as an acknowledgement, and resets the allowed silence."""
        self._may_last_s = SILENCE_S

    def is_to_be_asked(self) -> bool:
        """Returns whether the actor must ask the silent learner. After True, returns False for 15 s."""
        silent_s = time.monotonic() - self._since
        if silent_s < self._ask_after_s:
            return False
        self._ask_after_s = silent_s + SILENCE_S
        return True

    def is_in_vain(self) -> bool:
        """Notes that the learner has not answered in time. Returns True every third time: then assume a loss."""
        self._n_in_vain += 1
        return self._n_in_vain % _MAX_IN_VAIN == 0

    def find_loss(
        self, answer: JoinAgreement, *, is_open: bool, acknowledged: int, has_sent: bool, policy_version: int
    ) -> str:
        """Compares the learner's answer with the messages that have arrived here.

        Args:
            answer: The learner's answer to a Join that changes nothing.
            is_open: Whether the learner has answered on the stream. It answers as soon as the stream opens.
            acknowledged: The last rollout whose acknowledgement has arrived.
            has_sent: Whether the actor has sent a later rollout.
            policy_version: The newest policy that has arrived; 0: none.

        Returns:
            A description of the lost message, for the log; empty if the learner is busy, or its messages may still
            arrive.
        """
        told_version, self._told_version = self._told_version, answer.policy_version
        if not is_open:
            lost = "the first answer on the rollout stream"
        elif has_sent and answer.awaiting_s >= self._may_last_s:
            lost = f"rollout {acknowledged + 1}, for which the learner has waited for {answer.awaiting_s:.0f} s,"
        # A learner that waits for no rollout may still delay the answer, until the actor has places in a round.
        elif answer.acknowledged_sequence > acknowledged and answer.awaiting_s > 0.0:
            lost = f"the acknowledgement of rollout {answer.acknowledged_sequence}"
        elif told_version > policy_version:
            lost = f"version {told_version} of the policy"
        else:
            return ""
        self._may_last_s *= 2
        return lost
