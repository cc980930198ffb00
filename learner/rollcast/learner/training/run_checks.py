"""Refuses combinations of settings that no run can have."""

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import plays_in_rounds
from rollcast.services.errors import ConfigurationError


def check_settings(settings: LearnerSettings) -> None:
    """Checks the settings, before anything is made.

    Raises:
        ConfigurationError: Two of them exclude each other.
    """
    if settings.deterministic:
        _check_deterministic(settings)
    if settings.durable:
        _check_durable(settings)


def check_actors_resume(settings: LearnerSettings, actors: DistributedActors) -> None:
    """Checks that the actors of a resumed run can go on from its checkpoint.

    Raises:
        ConfigurationError: The run is deterministic, and its actors cannot begin in step in the middle of it.
    """
    if settings.deterministic and not actors.resumes_in_step:
        raise ConfigurationError(
            "--resume with --deterministic, and actors in other processes; expected --actor-kind sequential: the "
            "others cannot begin in step in the middle of a run; begin another run"
        )


def _check_deterministic(settings: LearnerSettings) -> None:
    if plays_in_rounds(settings):
        if settings.replay.samples_per_insert is None:
            raise ConfigurationError(
                "--deterministic with a replay buffer and without --replay.samples-per-insert; expected a number: it "
                "says how many updates there are between two rounds of the actors; set it"
            )
    elif settings.updates_per_broadcast != 1:
        raise ConfigurationError(
            f"--deterministic with --algorithm {settings.algorithm} and --updates-per-broadcast "
            f"{settings.updates_per_broadcast}; expected 1: actors play one rollout for each policy that is cast, "
            "and one of each makes a batch; leave it out"
        )


def _check_durable(settings: LearnerSettings) -> None:
    if isinstance(settings, TrainSettings) and settings.actor_kind == "sequential":
        raise ConfigurationError(
            "--durable with --actor-kind sequential; expected subprocess: sequential actors die with the learner, and "
            "nothing is acknowledged to them; leave one of the two out"
        )
    if settings.deterministic:
        raise ConfigurationError(
            "--durable with --deterministic; expected one of the two: actors in step cannot begin in the middle of a "
            "run, so the acknowledged rollouts could not be used again; leave one out"
        )
