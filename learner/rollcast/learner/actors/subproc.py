"""Actors as processes on this machine, over a unix socket: the same path as from another machine."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rollcast.actor.acting.local_process import LocalActorPlan
from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S, EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.local_processes import LocalProcesses
from rollcast.learner.actors.sequential import check_seeds
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.status.service import LearnerControl

# How long the actors may take to end by themselves.
_STOP_TIMEOUT_S = 3.0


class SubprocDistributedActors(ServedDistributedActors):
    """Runs `n_actors` local processes; one that dies is started again, never waited for for ever.

    Args:
        env_factory: Makes one environment; a function or class at the top of a module, because it goes to a process.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        n_actors: How many processes.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: Times `batch_size`, the capacity of the queue. Between actors of equal speed
            no rollout is then more than `ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size)`
            updates old.
        start_method: One of `multiprocessing.get_all_start_methods()`; None: forkserver where there is one, else spawn.
        actor_env_seeds: A seed an actor for its environments; derived from `seed` where None.
        actor_agent_seeds: A seed an actor for its sampling of actions; likewise.
        envs_per_actor: Environments each of them steps at once.
        seed: From which all other seeds derive.
        addresses: Where to listen besides the unix socket, for the control API and for actors from elsewhere.
        max_actors: Actors that may be alive at once, those from elsewhere included.
        max_policy_lag: Rollouts that are more versions old are dropped and counted; None: none is.
        on_actor_failure: Start it again, or fail.
        max_restarts: How often an actor may fail in a row before the run fails.
        bounded_staleness: Actors wait for the newest policy before they start a rollout.
        deterministic: See `ServedDistributedActors`; `n_actors` have to make a batch.
        control: Who may steer over `LearnerService`; None: it tells the status only.
        security: What is asked of clients at `addresses`.
        collect_timeout_s: How long `collect_outputs` waits before it gives up.
        step_timeout_s: How long a step of the environments may take before its actor has failed, in seconds.
        log_level: What the actors log to stderr.

    Raises:
        ConfigurationError: A number, the seeds or the start method cannot be right.
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
        addresses: Sequence[str] = (),
        max_actors: int = 64,
        max_policy_lag: int | None = None,
        bounded_staleness: bool = True,
        deterministic: bool = False,
        on_actor_failure: Literal["restart", "fail"] = "restart",
        max_restarts: int = 10,
        control: LearnerControl | None = None,
        security: ServerSecurity = PLAIN_SERVER,
        collect_timeout_s: float = 600.0,
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
            addresses=addresses,
            actor_env_seeds=check_seeds("actor_env_seeds", actor_env_seeds, n_actors),
            actor_agent_seeds=check_seeds("actor_agent_seeds", actor_agent_seeds, n_actors),
            envs_per_actor=envs_per_actor,
            seed=seed,
            max_actors=max_actors,
            max_policy_lag=max_policy_lag,
            bounded_staleness=bounded_staleness,
            deterministic=deterministic,
            control=control,
            security=security,
            collect_timeout_s=collect_timeout_s,
            actor_names=[f"local-{slot}" for slot in range(n_actors)],
        )
        self._local_env_factory = env_factory
        self._start_method = start_method
        self._max_restarts = max_restarts if on_actor_failure == "restart" else 0
        self._log_level = log_level
        self._step_timeout_s = step_timeout_s
        self._further_addresses = tuple(addresses)
        self._processes: LocalProcesses | None = None
        self._socket_dir: Path | None = None

    def start(self) -> None:
        """Begins to serve, and starts the processes.

        Raises:
            AddressInUseError: Somebody else serves one of the addresses.
            ConfigurationError: The environment factory cannot be sent to a process.
        """
        if self._processes is not None:
            return
        self._socket_dir = Path(tempfile.mkdtemp(prefix="rollcast-"))
        address = f"unix:{self._socket_dir / 'learner.sock'}"
        self._addresses = (address, *self._further_addresses)
        plans = [
            LocalActorPlan(
                address=address,
                actor_id=name,
                env_factory=self._local_env_factory,
                n_envs=self._envs_per_actor,
                network=self.policy.spec.network,
                log_level=self._log_level,
                step_timeout_s=self._step_timeout_s,
                max_rollout_bytes=self.limits.max_rollout_bytes,
            )
            for name in self._actor_names
        ]
        try:
            self._processes = LocalProcesses(
                plans,
                start_method=self._start_method,
                max_restarts=self._max_restarts,
                on_exit=self._note_exit,
            )
            # before the server: a process that is forked must not inherit a running one
            self._processes.start()
            super().start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the processes and the server; leaves no process, thread, socket or file behind."""
        try:
            super().stop()
        finally:
            if self._processes is not None:
                self._processes.stop(0.0 if self.is_in_a_hurry else _STOP_TIMEOUT_S)
                self._processes = None
            if self._socket_dir is not None:
                shutil.rmtree(self._socket_dir, ignore_errors=True)
                self._socket_dir = None

    def _look_after_actors(self) -> None:
        if self._processes is not None:
            self._processes.look_after()
