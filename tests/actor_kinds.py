"""The kinds of distributed actors, made alike, for the suite that all of them pass."""

import dataclasses
import signal

from rollcast.actor.environments.make import EnvironmentFactory, OnStepFailure
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.docker import DockerDistributedActors
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.services.policies.policies import PolicySpec
from tests.processes import DEADLINE_S, ended, zygote_process
from tests.zygote import ForkedProcess

# Besides these there is "docker", which needs an engine: see tests/e2e. The other ways to start local processes are in
# tests/integration/test_subproc_actors.py.
KINDS = ("sequential", "subproc-forkserver", "remote")


SERVING_FIELDS = dataclasses.fields(ServingOptions)


def make_policy_for(env_factory: EnvironmentFactory) -> TorchPolicy:
    return TorchPolicy(probe_spaces(env_factory), PolicySpec(hidden_sizes=(8,)))


class RemoteWithProcesses(RemoteDistributedActors):
    """Remote actors, and the processes that dial in: what an operator does, done by the test."""

    def __init__(self, env_factory: EnvironmentFactory, policy: TorchPolicy, *args: object, **kwargs: object) -> None:
        self._n_processes = kwargs.pop("n_actors")
        self._dialled_env = env_factory
        self.processes: list[ForkedProcess] = []
        super().__init__(policy, *args, **kwargs)

    def start(self) -> None:
        if self.processes:
            return
        super().start()
        for index in range(self._n_processes):
            # how many environments they step, they hear when they join
            self.processes.append(
                spawn_actor(
                    self._dialled_env,
                    self.addresses[0],
                    f"remote-{index}",
                    *("--on-step-failure", self._dialled_env.on_step_failure),
                )
            )

    def stop(self) -> None:
        super().stop()
        for process in self.processes:
            # most have gone by now; one that was still starting would wait for a learner to come
            assert ended(process, signal.SIGTERM) in (0, -signal.SIGTERM)
            process.stdout.close()
        self.processes = []


def spawn_actor(env_factory: EnvironmentFactory, address: str, actor_id: str, *options: str) -> ForkedProcess:
    """Starts an actor process as a user would: `python -m rollcast.actor ...`."""
    given = ("--learner-address", address, "--env-id", env_factory.env_id, "--actor-id", actor_id)
    return zygote_process("rollcast.actor", *given, "--log-level", "WARNING", *options)


def make_actors(
    kind: str,
    env_id: str = "tests.environments:CountingEnv",
    *,
    n_rollout_steps: int = 4,
    n_actors: int = 2,
    batch_size: int = 4,
    envs_per_actor: int = 2,
    seed: int = 0,
    on_step_failure: OnStepFailure = "fail",
    **options: object,
) -> DistributedActors:
    """Makes actors of a kind, not started; options are those of `ServingOptions`, or of the kind's constructor."""
    env_factory = EnvironmentFactory(env_id, {}, on_step_failure=on_step_failure)
    policy = make_policy_for(env_factory)
    if kind == "sequential":
        return SequentialDistributedActors(
            env_factory, policy, n_rollout_steps, n_actors, batch_size, envs_per_actor=envs_per_actor, seed=seed
        )
    served = {field.name: options.pop(field.name) for field in SERVING_FIELDS if field.name in options}
    if kind == "remote":
        served["addresses"] = ("127.0.0.1:0",)
    options |= {"seed": seed, "serving": ServingOptions(**{"collect_timeout_s": DEADLINE_S, **served})}
    if kind == "remote":
        return RemoteWithProcesses(
            env_factory,
            policy,
            n_rollout_steps,
            batch_size,
            n_actors=n_actors,
            envs_per_actor=envs_per_actor,
            **options,
        )
    if kind == "docker":
        return DockerDistributedActors(
            env_id, policy, n_rollout_steps, n_actors, batch_size, envs_per_actor=envs_per_actor, **options
        )
    return SubprocDistributedActors(
        env_factory,
        policy,
        n_rollout_steps,
        n_actors,
        batch_size,
        start_method=kind.removeprefix("subproc-"),
        envs_per_actor=envs_per_actor,
        **options,
    )
