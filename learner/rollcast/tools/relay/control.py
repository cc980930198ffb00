"""Refuses calls that only the learner answers; the error names the learner's address."""

from collections.abc import Sequence
from typing import NoReturn

from rollcast.services.errors import RefusedError
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus


class RefusingControl:
    """A `rollcast.services.status.service.LearnerControl` that refuses every call.

    A relay has an actor's token, which does not allow these calls at the learner.

    Args:
        relay_id: The relay.
        learner_address: The learner's address, for the message.
    """

    def __init__(self, relay_id: str, learner_address: str) -> None:
        self._relay_id = relay_id
        self._learner_address = learner_address

    def refuse(self, what: str) -> NoReturn:
        """Raises the error for a call.

        Args:
            what: The call.

        Raises:
            RefusedError: Always.
        """
        raise RefusedError(
            f"relay {self._relay_id!r} carries rollouts and policies, and does not answer {what}; expected a learner; "
            f"ask the learner itself: --learner-address {self._learner_address}"
        )

    def describe(self) -> LearnerDescription:
        """Refuses."""
        self.refuse("DescribeLearner")

    def status(self) -> LearnerStatus:
        """Refuses."""
        self.refuse("GetStatus")

    def actors(self) -> Sequence[ActorInfo]:
        """Refuses."""
        self.refuse("ListActors")

    def pause(self) -> None:
        """Refuses."""
        self.refuse("Pause")

    def resume(self) -> None:
        """Refuses."""
        self.refuse("Resume")

    def save_checkpoint(self) -> tuple[str, int]:
        """Refuses."""
        self.refuse("SaveCheckpoint")

    def request_stop(self) -> None:
        """Refuses."""
        self.refuse("Stop")
