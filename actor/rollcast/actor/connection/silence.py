"""A learner that says nothing: whether it is busy, or something was lost on its way to it or back.

A flipped bit in what tells HTTP/2 or gRPC whose a message is, or where it ends, makes that message vanish, while all
else of the connection goes on: neither a digest nor keepalive finds it. So an actor that hears nothing for long asks.
"""

import time

from rollcast.services.rollouts.join import JoinAgreement

# How long a learner may say nothing before it is asked.
SILENCE_S = 15.0


class Silence:
    """The silence on the rollout stream, which begins when the actor has sent something. Needs the connection's lock.

    After every time that something seemed to be lost, what is silent for twice as long is believed to be slow.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._may_last_s = self._ask_after_s = SILENCE_S
        # the version of the policy that the learner told of when it was asked last; 0: it was not
        self._told_version = 0

    def opened(self) -> None:
        """A stream was opened, perhaps to another learner."""
        self._told_version = 0
        self.broken()

    def broken(self) -> None:
        """Something was said: by the learner, or by the actor, which may have played for long."""
        self._since, self._ask_after_s = time.monotonic(), self._may_last_s

    def progressed(self) -> None:
        """It has acknowledged a rollout: what is on its way arrives."""
        self._may_last_s = SILENCE_S

    def is_to_be_asked(self) -> bool:
        """Whether it has been silent for so long that the learner should be asked; then not again for as long."""
        silent_s = time.monotonic() - self._since
        if silent_s < self._ask_after_s:
            return False
        self._ask_after_s = silent_s + SILENCE_S
        return True

    def find_loss(
        self, answer: JoinAgreement, *, is_open: bool, acknowledged: int, has_sent: bool, policy_version: int
    ) -> str:
        """Compares what a learner answers with what has come of it.

        Args:
            answer: What it answers to a Join that changes nothing.
            is_open: Whether it has said anything since the stream was opened, which it does at once.
            acknowledged: The last acknowledgement that has come.
            has_sent: Whether a rollout after that was sent.
            policy_version: The newest policy that has come; 0: none.

        Returns:
            What was lost, for people; empty: the learner is busy, or what it has told of may still come.
        """
        told_version, self._told_version = self._told_version, answer.policy_version
        if not is_open:
            lost = "the first answer on the rollout stream"
        elif has_sent and answer.awaiting_s >= self._may_last_s:
            lost = f"rollout {acknowledged + 1}, which the learner has awaited for {answer.awaiting_s:.0f} s,"
        elif answer.acknowledged_sequence > acknowledged:
            lost = f"the acknowledgement of rollout {answer.acknowledged_sequence}"
        elif told_version > policy_version:
            lost = f"version {told_version} of the policy"
        else:
            return ""
        self._may_last_s *= 2
        return lost
