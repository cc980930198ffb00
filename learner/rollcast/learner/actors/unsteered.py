"""Control of actors that no trainer steers: their user calls `collect_outputs` himself."""

from typing import TYPE_CHECKING, NoReturn

from rollcast.services.errors import NotReadyError, RefusedError
from rollcast.services.replay.replay import ReplayStatus, joint_replay_status
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus, Phase
from rollcast.services.version import software_version

if TYPE_CHECKING:
    from rollcast.learner.actors.served import ServedDistributedActors


class UnsteeredControl:
    """Tells how the actors stand, and refuses to steer: a `rollcast.services.status.service.LearnerControl`.

    Args:
        actors: Whose status to tell.
    """

    def __init__(self, actors: "ServedDistributedActors") -> None:
        self._actors = actors

    def describe(self) -> LearnerDescription:
        """Describes the actors' side; the algorithm is the affair of whoever collects."""
        intake = self._actors.intake
        if intake is None:
            raise NotReadyError("the actors are starting or stopping; expected them to run; try again with backoff")
        nobody_collects = self._actors.destination is not None
        return intake.describe(algorithm="", batch_size=0 if nobody_collects else self._actors.batch_size)

    def status(self) -> LearnerStatus:
        """What is known without a trainer."""
        reason, waited_s = self._actors.waiting.current()
        return LearnerStatus(
            phase=Phase.TRAINING,
            waiting_for=reason,
            waiting_s=waited_s,
            policy_version=self._actors.policy_version,
            queue_size=self._actors.queue_size,
            queue_capacity=self._actors.queue_capacity,
            actors_alive=self._actors.n_actors_alive,
            actors_expected=self._actors.n_actors,
            duplicate_rollouts=self._actors.duplicate_rollouts,
            rejected_rollouts=self._actors.rejected_rollouts,
            stale_trajectories=self._actors.stale_trajectories,
            replay=self._replay_status(),
            software_version=software_version(),
        )

    def actors(self) -> list[ActorInfo]:
        """Every actor that has joined, by slot."""
        return self._actors.actor_infos

    def pause(self) -> None:
        """Refused."""
        self._refuse("pause")

    def resume(self) -> None:
        """Refused."""
        self._refuse("resume")

    def save_checkpoint(self) -> tuple[str, int]:
        """Refused."""
        self._refuse("save a checkpoint")

    def request_stop(self) -> None:
        """Ends the wait of `collect_outputs`."""
        self._actors.interrupt()

    def _replay_status(self) -> ReplayStatus | None:
        served = self._actors.replay
        if served is None:
            return None
        return joint_replay_status({key: source.info().status() for key, source in served.items()})

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise RefusedError(f"cannot {what}: no trainer runs these actors; their own program decides when to update")
