"""The actor of a learner whose environments dial in: a local process that starts before the learner."""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Self

from rollcast.actor.acting.local_process import LocalActorPlan
from rollcast.actor.dialling.supply import DialIn
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.local_processes import LocalProcesses, text_pipe
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.supervision import ActorEnd
from rollcast.learner.serving.first_actor import spaces_of_first_actor
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.server import Endpoint
from rollcast.services.errors import CollectTimeoutError
from rollcast.services.limits.limits import Limits
from rollcast.services.process.socket_paths import short_temporary_paths
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

_NAME: Final = "local-0"
# The seconds in which the actor may end its clients, and itself.
_STOP_TIMEOUT_S: Final = 10.0


class DialInActor:
    """A process that serves environments, and acts for them once a learner exists. `look_after` restarts it.

        with DialInActor(dial_in, envs_per_actor=8, announce=print) as actor:
            spaces = actor.wait_for_spaces(timeout_s=600.0)
            actors = DialInDistributedActors(actor, policy, ...)

    For one thread.

    Args:
        dial_in: The settings with which environments dial in.
        envs_per_actor: The number of places for environments.
        announce: Called with lines for the user, such as the address once it is known.
        network: The policy network that the actor may build.
        start_method: See `multiprocessing_context`.
        on_actor_failure: Whether a failed actor is restarted, or ends the run.
        max_restarts: The number of consecutive failures after which the run fails.
        step_timeout_s: The seconds that a client may take for a turn.
        limits: The learner's limits.
        log_level: The level at which the actor logs to stderr.

    Attributes:
        address: The learner's address for the actor, a unix socket.
        announce: See Args.
        dialled: The addresses at which environments may dial in.
        envs_per_actor: See Args.

    Raises:
        ConfigurationError: The start method does not exist.
    """

    def __init__(
        self,
        dial_in: DialIn,
        *,
        envs_per_actor: int,
        announce: Callable[[str], None],
        network: str,
        start_method: str | None,
        on_actor_failure: Literal["restart", "fail"],
        max_restarts: int,
        step_timeout_s: float,
        limits: Limits,
        log_level: str,
    ) -> None:
        with short_temporary_paths():
            self._socket_dir = Path(tempfile.mkdtemp(prefix="rollcast-"))
        self.address = f"unix:{self._socket_dir / 'learner.sock'}"
        self.envs_per_actor = envs_per_actor
        self.announce = announce
        self.dialled = dial_in.address
        self._limits = limits
        self._said, self._told = text_pipe()
        plan = LocalActorPlan(
            address=self.address,
            actor_id=_NAME,
            env_factory=None,
            n_envs=envs_per_actor,
            network=network,
            log_level=log_level,
            step_timeout_s=step_timeout_s,
            max_rollout_bytes=limits.max_rollout_bytes,
            dial_in=dial_in,
            told=self._told,
        )
        self._on_exit: Callable[[str, ActorEnd], None] = _log_failure
        try:
            self._processes = LocalProcesses(
                [plan],
                start_method=start_method,
                max_restarts=max_restarts if on_actor_failure == "restart" else 0,
                on_exit=lambda name, end: self._on_exit(name, end),  # noqa: PLW0108  # set later
            )
        except BaseException:
            self._remove()
            raise

    def __enter__(self) -> Self:
        try:
            self._processes.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def wait_for_spaces(self, timeout_s: float) -> EnvironmentSpaces:
        """Returns the spaces of the first client.

        Args:
            timeout_s: The seconds to wait for a client.

        Raises:
            ActorFailedError: The actor cannot serve.
            CollectTimeoutError: No client has dialled in.
        """
        try:
            return spaces_of_first_actor(
                self.address, limits=self._limits, timeout_s=timeout_s, look_after=self.look_after
            )
        except CollectTimeoutError as error:
            raise CollectTimeoutError(
                f"no environment has dialled in at {self.dialled} for {timeout_s:.0f} s, and the learner needs its "
                "spaces; expected one; start it sooner, or raise --collect-timeout-s"
            ) from error

    def look_after(self) -> None:
        """Restarts the actor if it has ended. Announces the address whenever the actor begins to serve.

        Raises:
            ActorFailedError: The actor failed, and will not be restarted.
        """
        while self._said.poll():
            self.dialled = self._said.recv_bytes().decode()
            self.announce(f"environments may dial in at {self.dialled}")
        self._processes.look_after()

    def note_exits(self, on_exit: Callable[[str, ActorEnd], None]) -> None:
        """Sets a callback for unexpected ends; `on_exit` gets the actor's name and its end."""
        self._on_exit = on_exit

    def stop(self, *, farewell: bool = False, at_once: bool = False) -> None:
        """Ends the process and removes its files. Idempotent.

        Args:
            farewell: True: training has ended; the actor tells its clients, and ends by itself.
            at_once: True: the process must end without delay.
        """
        if farewell and not at_once:
            for process in self._processes.processes:
                process.join(_STOP_TIMEOUT_S)
        self._processes.stop(0.0 if at_once else _STOP_TIMEOUT_S)
        self._remove()

    def leave(self) -> None:
        """Ends the process in time to say goodbye to the learner; `stop` then removes its files."""
        self._processes.stop(_STOP_TIMEOUT_S)

    def _remove(self) -> None:
        self._said.close()
        self._told.close()
        shutil.rmtree(self._socket_dir, ignore_errors=True)


def _log_failure(name: str, end: ActorEnd) -> None:
    """Logs the traceback of an actor that fails before it has joined."""
    if end.failure is not None and end.failure.traceback:
        logger.error("actor %s failed:\n%s", name, end.failure.traceback)


class DialInDistributedActors(ServedDistributedActors):
    """The one actor of a learner whose environments dial in.

    Args:
        actor: The started actor; `stop` ends it, too.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: The capacity of the queue, in batches.
        seed: The seed from which all seeds derive.
        serving: The serving options; their `addresses` are used in addition to the unix socket.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        actor: DialInActor,
        policy: TorchPolicy,
        n_rollout_steps: int,
        batch_size: int,
        queue_out_of_sync_factor: float = 1.0,
        *,
        seed: int = 0,
        serving: ServingOptions,
    ) -> None:
        super().__init__(
            None,
            policy,
            n_rollout_steps,
            1,
            batch_size,
            queue_out_of_sync_factor,
            envs_per_actor=actor.envs_per_actor,
            seeds=ActorSeeds(seed),
            serving=serving,
            actor_names=[_NAME],
        )
        self._actor = actor
        actor.note_exits(self._note_exit)

    def start(self) -> None:
        """Begins to serve. The waiting actor then joins. Announces how to start an evaluator, if the run needs one.

        Raises:
            AddressInUseError: Another process serves one of the addresses.
            ConfigurationError: See `ServedDistributedActors.start`.
        """
        self._serve([Endpoint(self._actor.address, self._serving.security), *self._endpoints()])
        if self._serving.evaluations is not None:
            self._actor.announce(
                "no policy is evaluated until you start an evaluator with an environment of the same spaces: "
                f"rollcast actor --role evaluate --learner-address {self.addresses[-1]} --env-id ENV_ID"
            )

    def leave_waiting(self) -> None:
        """See `DistributedActors.leave_waiting`: asks clients to dial in again instead of ending their training."""
        self._training_goes_on = True

    def stop(self) -> None:
        """Ends the server and the actor; removes all processes, threads, sockets and files."""
        is_playing = self._is_serving and self.n_actors_alive > 0
        try:
            if self._training_goes_on and not self.cancels_waits:
                # The actor would otherwise search the learner, and warn of its loss.
                self._actor.leave()
            super().stop()
        finally:
            self._actor.stop(farewell=is_playing and not self._training_goes_on, at_once=self.cancels_waits)

    def _look_after_actors(self) -> None:
        self._actor.look_after()

    def _dialled(self) -> str:
        return self._actor.dialled
