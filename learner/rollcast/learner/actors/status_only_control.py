"""Answers `LearnerService` for actors without a trainer: the user's program calls `collect_outputs`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

from rollcast.services.errors import RefusedError
from rollcast.services.replay.replay import ReplayStatus, joint_replay_status
from rollcast.services.replay.service import ReplaySource
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus


class ReportedActors(Protocol):
    """Actors that can report their status. Called from many threads."""

    @property
    def actor_infos(self) -> Sequence[ActorInfo]:
        """Every actor that has ever joined, by slot."""

    def status(self) -> LearnerStatus:
        """Returns the status of the actors."""

    def describe(self, *, algorithm: str, batch_size: int) -> LearnerDescription:
        """Describes the algorithm, the spaces and the work.

        Raises:
            NotReadyError: The learner does not serve actors at the moment.
        """

    def interrupt(self) -> None:
        """Ends the wait of `collect_outputs`."""


class StatusOnlyControl:
    """Reports the status of the actors, and refuses control calls: a `rollcast.services.status.service.LearnerControl`.

    Args:
        actors: The actors.
        batch_size: B of collected batches; 0: no batches.
        replay: The served replay buffers, by substep key; None: no buffers.
    """

    def __init__(self, actors: ReportedActors, *, batch_size: int, replay: Mapping[str, ReplaySource] | None) -> None:
        self._actors = actors
        self._batch_size = batch_size
        self._replay = replay

    def describe(self) -> LearnerDescription:
        """Describes the actors' side. The algorithm is unknown, because it runs in the user's own loop."""
        return self._actors.describe(algorithm="", batch_size=self._batch_size)

    def status(self) -> LearnerStatus:
        """Returns the part of the status that is known without a trainer."""
        return dataclasses.replace(self._actors.status(), replay=self._replay_status())

    def actors(self) -> Sequence[ActorInfo]:
        """Returns every actor that has joined, by slot."""
        return self._actors.actor_infos

    def pause(self) -> None:
        """Refuses."""
        self._refuse("pause")

    def resume(self) -> None:
        """Refuses."""
        self._refuse("resume")

    def save_checkpoint(self) -> tuple[str, int]:
        """Refuses."""
        self._refuse("save a checkpoint")

    def request_stop(self) -> None:
        """Ends the wait of `collect_outputs`."""
        self._actors.interrupt()

    def _replay_status(self) -> ReplayStatus | None:
        if self._replay is None:
            return None
        return joint_replay_status({key: source.info().status() for key, source in self._replay.items()})

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise RefusedError(
            f"cannot {what}: no trainer runs these actors; the program that runs them decides when to update"
        )
