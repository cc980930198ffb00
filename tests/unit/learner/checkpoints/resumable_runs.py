"""Runs of sequential actors that are stopped and resumed, in this process."""

from collections.abc import Callable
from pathlib import Path

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import actors_batch_size
from rollcast.learner.training.training_run import TrainingRun, training_run
from rollcast.services.policies.policies import PolicyState
from rollcast.services.status.service import LearnerControl

OPTIONS = {
    "impala": "--n-rollout-steps 8 --envs-per-actor 3 --batch-size 4 --total-steps 640 --checkpoint-interval-updates 5",
    "ppo": "--n-rollout-steps 8 --envs-per-actor 2 --batch-size 4 --ppo.minibatch-steps 16 --ppo.n-epochs 2 "
    "--total-steps 640 "
    "--checkpoint-interval-updates 5",
    "appo": "--n-rollout-steps 8 --envs-per-actor 3 --batch-size 4 --appo.minibatch-steps 16 --appo.n-epochs 2 "
    "--total-steps 640 "
    "--checkpoint-interval-updates 5",
    "examples.own_algorithm:ActorCritic": "--n-rollout-steps 8 --envs-per-actor 3 --batch-size 4 --total-steps 640 "
    '--checkpoint-interval-updates 5 --algorithm-kwargs {"learning_rate":0.01}',
    "tests.unit.learner.algorithms.own_algorithms:OwnDqn": "--n-rollout-steps 4 --batch-size 16 --total-steps 140 "
    "--replay.min-size 40 --updates-per-broadcast 2 --checkpoint-interval-updates 20 "
    "--replay.samples-per-insert 12 --envs-per-actor 4",
    "sac": "--n-rollout-steps 4 --batch-size 16 --total-steps 70 --replay.min-size 40 --replay.samples-per-insert 12 "
    "--updates-per-broadcast 2 --checkpoint-interval-updates 20",
    "dqn": "--n-rollout-steps 4 --batch-size 16 --total-steps 140 --replay.min-size 40 --updates-per-broadcast 2 "
    "--replay.samples-per-insert 40 --checkpoint-interval-updates 20",
    "r2d2": "--n-rollout-steps 4 --replay.sequence-length 3 --replay.burn-in 1 --batch-size 4 --total-steps 140 "
    "--replay.min-size 10 --replay.samples-per-insert 20 --recurrent-size 4 --updates-per-broadcast 2 "
    "--checkpoint-interval-updates 20",
}


def settings_for(run_dir: Path, algorithm: str, *options: str) -> TrainSettings:
    common = ["--algorithm", algorithm, "--hidden-sizes", "8", "--device", "cpu", "--torch-threads", "1"]
    common += ["--actor-kind", "sequential", "--run-dir", str(run_dir)]
    return TrainSettings.from_command_line("rollcast train", [*common, *OPTIONS[algorithm].split(), *options])


def resumed(run_dir: Path, *options: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", ["--resume", str(run_dir), *options])


def train(
    settings: TrainSettings, *, n_casts: int | None = None, announce: Callable[[str], None] = lambda line: None
) -> TrainingRun:
    """Trains to the end, or until so many policies were cast: one at the start, one an update, one a checkpoint."""
    env_factory = EnvironmentFactory(settings.env_id, settings.env_kwargs, agent_policies=settings.agent_policies)

    def make_actors(policy: TorchPolicy, serving: ServingOptions) -> StoppingActors:
        return StoppingActors(env_factory, policy, settings, serving.control, n_casts)

    spaces = probe_spaces(env_factory)
    with training_run(settings, spaces, make_actors, n_local_actors=0, announce=announce) as run:
        run.train()
    return run


class StoppingActors(SequentialDistributedActors):
    """Sequential actors whose operator stops the run after some updates."""

    def __init__(
        self,
        env_factory: EnvironmentFactory,
        policy: TorchPolicy,
        settings: TrainSettings,
        control: LearnerControl,
        n_casts: int | None,
    ) -> None:
        super().__init__(
            env_factory,
            policy,
            settings.n_rollout_steps,
            settings.n_actors,
            actors_batch_size(settings, policy.spaces, settings.n_actors),
            envs_per_actor=settings.envs_per_actor,
            seed=settings.seed,
        )
        self._stopping = control
        self._left = n_casts

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        super().broadcast_updated_policy(state_dict)
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._stopping.request_stop()
