"""`rollcast learner`: learns from actors that dial in."""

from rich.console import Console

from actor.environments.make import EnvironmentFactory
from actor.policies.torch_policy import TorchPolicy
from learner.actors.base import DistributedActors
from learner.actors.remote import RemoteDistributedActors
from learner.commands.running import run_and_report
from learner.control import TrainingControl
from learner.settings import LearnerSettings
from learner.training_run import training_run


def learner(settings: LearnerSettings, console: Console) -> int:
    """Learns to the end and returns the exit code.

    Raises:
        RollcastError: Training cannot start, or cannot go on.
    """
    # only for its spaces: the actors bring their own
    env_factory = EnvironmentFactory(settings.env_id, settings.env_kwargs)

    def make_actors(policy: TorchPolicy, control: TrainingControl) -> DistributedActors:
        return RemoteDistributedActors(
            policy,
            settings.n_rollout_steps,
            settings.batch_size,
            settings.queue_out_of_sync_factor,
            addresses=(settings.address,),
            seed=settings.seed,
            max_actors=settings.max_actors,
            max_policy_lag=settings.max_policy_lag,
            bounded_staleness=settings.bounded_staleness,
            control=control,
            collect_timeout_s=settings.collect_timeout_s,
        )

    with training_run(settings, env_factory, make_actors, n_local_actors=0) as run:
        return run_and_report(run, settings, console)
