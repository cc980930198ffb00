"""Decides whether a silent learner is busy, or a message was lost on its way.

A flipped bit in the framing of HTTP/2 or gRPC makes one message vanish while the rest of the connection works. Neither
a digest nor keepalive finds that, so an actor that hears nothing for long asks the learner for its progress.
"""

import time

from rollcast.services.joining.join import JoinAgreement

# Seconds of silence after which the learner is asked.
SILENCE_S = 15.0
# Time for its answer, in seconds. The acting thread asks, and must be able to stop.
ASK_TIMEOUT_S = 2.0
# So often it is asked without an answer before the actor connects again. On a slow link it never answers in time.
_MAX_IN_VAIN = 3


class StallDetector:
    """A clock of the silence on a stream. Every call needs the connection's lock.

    After each loss that was found, the learner may be silent for twice as long: it may only be slow.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._may_last_s = self._ask_after_s = SILENCE_S
        # The policy version in the learner's last answer; 0: it has not been asked on this stream.
        self._told_version = 0
        self._n_in_vain = 0

    def opened(self) -> None:
        """Starts over for a new stream, perhaps to another learner."""
        self._told_version = 0
        self.broken()

    def broken(self) -> None:
        """Starts the clock again: the learner has answered, or the actor has sent a rollout."""
        self._since, self._ask_after_s = time.monotonic(), self._may_last_s
        self._n_in_vain = 0

    def progressed(self) -> None:
        """Notes that a message has come through, such as an acknowledgement: the usual silence is allowed again."""
        self._may_last_s = SILENCE_S

    def is_to_be_asked(self) -> bool:
        """Returns True if the learner has been silent for so long that it should be asked; then not again for 15 s."""
        silent_s = time.monotonic() - self._since
        if silent_s < self._ask_after_s:
            return False
        self._ask_after_s = silent_s + SILENCE_S
        return True

    def is_in_vain(self) -> bool:
        """Notes that the learner has not answered in time; returns True the third time: it is unknown what is lost."""
        self._n_in_vain += 1
        return self._n_in_vain % _MAX_IN_VAIN == 0

    def find_loss(
        self, answer: JoinAgreement, *, is_open: bool, acknowledged: int, has_sent: bool, policy_version: int
    ) -> str:
        """Compares the learner's answer with the messages that have arrived here.

        Args:
            answer: Its answer to a Join that changes nothing.
            is_open: Whether it has answered on the stream, which it does at once when the stream is opened.
            acknowledged: The last rollout whose acknowledgement has arrived.
            has_sent: Whether a rollout after that was sent.
            policy_version: The newest policy that has arrived; 0: none.

        Returns:
            The lost message in words, for the log; empty if the learner is busy, or its last messages may still come.
        """
        told_version, self._told_version = self._told_version, answer.policy_version
        if not is_open:
            lost = "the first answer on the rollout stream"
        elif has_sent and answer.awaiting_s >= self._may_last_s:
            lost = f"rollout {acknowledged + 1}, which the learner has awaited for {answer.awaiting_s:.0f} s,"
        # A learner that waits for nothing may still hold the answer back: until the actor has places in a round.
        elif answer.acknowledged_sequence > acknowledged and answer.awaiting_s > 0.0:
            lost = f"the acknowledgement of rollout {answer.acknowledged_sequence}"
        elif told_version > policy_version:
            lost = f"version {told_version} of the policy"
        else:
            return ""
        self._may_last_s *= 2
        return lost
