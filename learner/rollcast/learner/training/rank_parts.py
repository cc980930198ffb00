"""Makes the parts of a run that only one of several ranks has."""

import json
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import torch

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.checkpoints.manifest import CheckpointInfo, read_info
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.nothing import batch_of_nothing
from rollcast.learner.experience.ranked import RankedExperience, RankWishes
from rollcast.learner.ranks.place import RankPlace
from rollcast.learner.ranks.run import RunRanks, rank_address
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.run_device import choose_device
from rollcast.learner.training.run_parts import batch_size, learns_from_replay
from rollcast.services.errors import ConfigurationError
from rollcast.services.history.history import LearnerActivity
from rollcast.services.rendezvous import advertised_address
from rollcast.services.status.status import Phase

Settings = TypeVar("Settings", bound=LearnerSettings)

_RUN: Final = "run"
_PHASES: Final = {
    Phase.STARTING: "starting",
    Phase.PAUSED: "pausing",
    Phase.STOPPING: "stopping",
    Phase.FINISHED: "serving the last policy",
}
_ACTIVITIES: Final = {
    LearnerActivity.WAITING: "waiting for a batch",
    LearnerActivity.UPDATING: "learning",
    LearnerActivity.PUBLISHING: "publishing the policy",
    LearnerActivity.CHECKPOINTING: "keeping metrics and checkpoints",
    LearnerActivity.PAUSED: "pausing",
}


def check_rank_settings(settings: ServingSettings, place: RankPlace) -> None:
    """Checks that several ranks can train with these settings, before anything is made.

    Raises:
        ConfigurationError: They cannot.
    """
    for option, is_given, expected, advice in (
        (
            "--deterministic",
            settings.deterministic,
            "one of the two: ranks take what has come by their deadlines",
            "leave --deterministic out, or train with one rank",
        ),
        (
            "--cuda-graphs on",
            settings.cuda_graphs == "on",
            "auto or off: no run has shown yet that a graph can hold operations of all ranks",
            "leave it out",
        ),
        (
            "--spaces-from first_actor",
            settings.spaces_from == "first_actor",
            "--spaces-from environment: actors join only one of the ranks first",
            "install the environment where the learners run",
        ),
    ):
        if is_given:
            raise ConfigurationError(f"{option} with {place.n_ranks} ranks; expected {expected}; {advice}")


def settings_of_rank(settings: ServingSettings, rank: int) -> ServingSettings:
    """Returns the settings of a rank: each has an address of its own, and rank 0 alone what a run has once.

    Raises:
        ConfigurationError: There is no such port.
    """
    if rank == 0:
        return settings
    file = settings.address_file
    return settings.model_copy(
        update={
            "address": rank_address(settings.address, rank),
            "address_file": None if file is None else file.with_name(f"{file.name}.{rank}"),
            "metrics_address": None,
            "summary_json": None,
            "track": None,
            "eval_interval_s": None,
            "eval_interval_steps": None,
            "eval_patience": None,
            "stop_on": None,
        }
    )


def device_of_rank(name: str, place: RankPlace) -> torch.device:
    """Returns the device of a rank: of several GPUs of a machine, each rank has its own.

    Raises:
        ConfigurationError: There is no CUDA device, or there are fewer than ranks.
    """
    device = choose_device(name)
    if device.type == "cpu":
        return device
    n_devices = torch.cuda.device_count()
    if place.local_rank >= n_devices:
        raise ConfigurationError(
            f"--device: {name!r} for the local rank {place.local_rank} of a machine with {n_devices} CUDA devices; "
            f"expected one for each rank; start at most {n_devices} with --nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def tell_run(ranks: RunRanks, run: RunDirectory, checkpoint: tuple[Path, CheckpointInfo] | None) -> None:
    """Tells the other ranks the folder of the run, and the checkpoint from which it goes on. For rank 0."""
    path = None if checkpoint is None else str(checkpoint[0].resolve())
    ranks.group.tell(_RUN, json.dumps({"run": str(run.path.resolve()), "checkpoint": path}))


def told_run(ranks: RunRanks) -> tuple[RunDirectory, tuple[Path, CheckpointInfo] | None]:
    """Waits for what `tell_run` told, and returns it. For all other ranks.

    Raises:
        ConfigurationError: The folder is not there: the ranks share no file system.
        RankLostError: Rank 0 has told nothing in time.
    """
    told = json.loads(ranks.group.told(_RUN, 0, what="rank 0 to create the folder of the run"))
    run = RunDirectory(Path(told["run"]))
    if not run.path.is_dir():
        raise ConfigurationError(
            f"rank 0 keeps its run in {str(run.path)!r}, which is not there for rank {ranks.rank}; expected a folder "
            "on a file system that all ranks share, where each rank writes its part; choose such a --run-dir"
        )
    checkpoint = None if told["checkpoint"] is None else Path(told["checkpoint"])
    return run, None if checkpoint is None else (checkpoint, read_info(checkpoint))


def ranked_experience(
    settings: LearnerSettings,
    source: ExperienceSource,
    algorithm: Algorithm,
    control: TrainingControl,
    ranks: RunRanks,
    wishes: RankWishes,
) -> RankedExperience:
    """Makes the source of a rank's batches, which agrees with the others on each update."""
    actors = source.actors
    wishes.is_paused = lambda: control.is_paused
    wishes.stops = lambda: int(control.stop_requested) * (1 + actors.leaves_waiting)
    wishes.on_stop = partial(_stop, control, actors)
    wishes.on_start = partial(_announce, settings, actors, ranks)
    ranks.group.describe = partial(_describe, control)
    n_steps, burn_in, of_transitions = settings.n_rollout_steps, 0, False
    if learns_from_replay(settings):
        replay = settings.replay
        burn_in = replay.burn_in
        of_transitions = replay.entry == "transitions"
        n_steps = 1 if of_transitions else burn_in + (replay.sequence_length or settings.n_rollout_steps)

    return RankedExperience(
        source,
        ranks.rounds,
        ranks.homes,
        algorithm,
        wishes,
        nothing=lambda device: batch_of_nothing(
            algorithm.policy,
            n_steps=n_steps,
            batch_size=batch_size(settings, algorithm.policy.spaces),
            device=device,
            from_replay=of_transitions,
            burn_in=burn_in,
        ),
        data_timeout_s=ranks.data_timeout_s,
        check_updates=ranks.check_updates,
    )


def _describe(control: TrainingControl) -> tuple[str, str]:
    """Returns what a rank does now, and after which update; see `RankGroup.describe`."""
    status = control.status()
    if status.phase is not Phase.TRAINING:
        doing = _PHASES[status.phase]
    elif status.waiting_for:
        doing = f"waiting for {status.waiting_for}"
    else:
        doing = _ACTIVITIES[control.memory.activity.state]
    return doing, f"after {status.updates} updates"


def _stop(control: TrainingControl, actors: DistributedActors, stops: int) -> None:
    """Stops this rank as another was asked to."""
    control.stop_requested = True
    if stops > 1:
        actors.leave_waiting()


def _announce(settings: LearnerSettings, actors: DistributedActors, ranks: RunRanks) -> None:
    """Tells the other ranks where actors reach this one."""
    (*_, address) = actors.addresses
    ranks.serve_at(advertised_address(address, settings.advertised_host))
