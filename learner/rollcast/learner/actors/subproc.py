"""Actors as local processes. They use the protocol of actors on other machines, over a unix socket."""

import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from rollcast.actor.acting.local_process import LocalActorPlan
from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S, EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.local_processes import LocalProcesses
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.supervision import ActorEnd
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.server import Endpoint
from rollcast.services.errors import ActorFailedError
from rollcast.services.joining.join import ActorRole
from rollcast.services.process.socket_paths import short_temporary_paths

logger = logging.getLogger(__name__)

_EVALUATOR: Final = "evaluator"
# An evaluator that fails this many times in a row is not restarted: training does not wait for it.
_MAX_EVALUATOR_RESTARTS: Final = 10
# The time in which the actors may end by themselves.
_STOP_TIMEOUT_S = 3.0


class SubprocDistributedActors(ServedDistributedActors):
    """Actors in `n_actors` local processes. A dead process is restarted, and no thread waits forever for a process.

    Args:
        env_factory: Makes one environment; a function or class at module level, because it is sent to a process.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        n_actors: The number of processes.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: The capacity of the queue, in batches. With actors of equal speed, no rollout is then
            more than `ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size)` updates old.
        start_method: One of `multiprocessing.get_all_start_methods()`; None: forkserver if available, else spawn.
        actor_env_seeds: One seed per actor for its environments; None derives them from `seed`.
        actor_agent_seeds: One seed per actor for its sampling of actions; None derives them from `seed`.
        envs_per_actor: The environments that each process steps at once.
        seed: The seed from which missing seeds are derived.
        serving: The serving options; their `addresses` are used in addition to the unix socket.
        on_actor_failure: Whether a failed actor is restarted, or ends the run.
        max_restarts: The number of consecutive failures of one actor after which the run fails.
        step_timeout_s: The longest step of the environments, in seconds; after that, the actor counts as failed.
        log_level: The level at which actors log to stderr.

    Raises:
        ConfigurationError: A number, the seeds or the start method are invalid.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        queue_out_of_sync_factor: float = 1.0,
        start_method: str | None = None,
        actor_env_seeds: Sequence[int] | None = None,
        actor_agent_seeds: Sequence[int] | None = None,
        *,
        envs_per_actor: int = 1,
        seed: int = 0,
        serving: ServingOptions | None = None,
        on_actor_failure: Literal["restart", "fail"] = "restart",
        max_restarts: int = 10,
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        log_level: str = "WARNING",
    ) -> None:
        super().__init__(
            env_factory,
            policy,
            n_rollout_steps,
            n_actors,
            batch_size,
            queue_out_of_sync_factor,
            envs_per_actor=envs_per_actor,
            seeds=ActorSeeds.for_actors(seed, n_actors, env_seeds=actor_env_seeds, agent_seeds=actor_agent_seeds),
            serving=serving or ServingOptions(),
            actor_names=[f"local-{slot}" for slot in range(n_actors)],
        )
        self._local_env_factory = env_factory
        self._start_method = start_method
        self._max_restarts = max_restarts if on_actor_failure == "restart" else 0
        self._step_timeout_s = step_timeout_s
        self._log_level = log_level
        self._processes: LocalProcesses | None = None
        self._evaluator: LocalProcesses | None = None
        self._socket_dir: Path | None = None

    def start(self) -> None:
        """Begins to serve, and starts the processes.

        Raises:
            AddressInUseError: Another process serves one of the addresses.
            ConfigurationError: The environment factory cannot be sent to a process.
        """
        if self._processes is not None:
            return
        with short_temporary_paths():
            self._socket_dir = Path(tempfile.mkdtemp(prefix="rollcast-"))
        address = f"unix:{self._socket_dir / 'learner.sock'}"
        try:
            self._processes = LocalProcesses(
                [self._plan(name, address) for name in self._work.names],
                start_method=self._start_method,
                max_restarts=self._max_restarts,
                on_exit=self._note_exit,
                has_rollouts=lambda: self.n_rollouts > 0,
            )
            # Before the server: a process that is forked must not inherit a running one.
            self._processes.start()
            if self._serving.evaluations is not None:
                self._evaluator = self._make_evaluator(address, self._serving.evaluations)
                self._evaluator.start()
            self._serve([Endpoint(address, self._serving.security), *self._endpoints()])
        except BaseException:
            self.stop()
            raise

    def _make_evaluator(self, address: str, evaluations: Evaluations) -> LocalProcesses:
        def note_exit(name: str, end: ActorEnd) -> None:
            evaluations.note_exit(name, end.report.splitlines()[0], end.failure)

        return LocalProcesses(
            [dataclasses.replace(self._plan(_EVALUATOR, address), n_envs=1, role=ActorRole.EVALUATE)],
            start_method=self._start_method,
            max_restarts=_MAX_EVALUATOR_RESTARTS,
            on_exit=note_exit,
        )

    def _plan(self, actor_id: str, address: str) -> LocalActorPlan:
        return LocalActorPlan(
            address=address,
            actor_id=actor_id,
            env_factory=self._local_env_factory,
            n_envs=self._work.envs_per_actor,
            network=self.policy.spec.network,
            log_level=self._log_level,
            step_timeout_s=self._step_timeout_s,
            max_rollout_bytes=self._limits.max_rollout_bytes,
        )

    def stop(self) -> None:
        """Ends the processes and the server; removes all processes, threads, sockets and files."""
        try:
            super().stop()
        finally:
            for processes in (self._evaluator, self._processes):
                if processes is not None:
                    processes.stop(0.0 if self.cancels_waits else _STOP_TIMEOUT_S)
            self._processes = self._evaluator = None
            if self._socket_dir is not None:
                shutil.rmtree(self._socket_dir, ignore_errors=True)
                self._socket_dir = None

    def _n_local_evaluators(self) -> int:
        return 0 if self._evaluator is None else len(self._evaluator.processes)

    def _look_after_actors(self) -> None:
        if self._processes is not None:
            self._processes.look_after()
        if self._evaluator is not None:
            try:
                self._evaluator.look_after()
            except ActorFailedError as error:
                logger.error("%s; training continues, and no policy is evaluated any more", error)  # noqa: TRY400
