"""Actors in containers on this machine, started through the Docker SDK: their dependencies are not the learner's."""

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.docker_containers import ContainerPlan, DockerContainers
from rollcast.learner.actors.docker_engine import RUN_LABEL, DockerRun, connect_to_engine
from rollcast.learner.actors.sequential import check_seeds
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.services.errors import ConfigurationError, ContainerEngineError
from rollcast.services.limits.limits import DEFAULT_LIMITS
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.security.tokens import Role, TokenTable
from rollcast.services.status.service import LearnerControl

logger = logging.getLogger(__name__)

# How long the actors may take to end by themselves.
_STOP_TIMEOUT_S = 3.0

# What the engine allows in a name; run and slot follow.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}")


class DockerDistributedActors(ServedDistributedActors):
    """Runs `n_actors` containers; one that dies is started again, never waited for for ever.

    The learner listens at its address in the containers' network and nowhere else, and so has to run on the engine's
    machine. Containers of a learner that was killed end by themselves after `reconnect_timeout_s`, and are removed by
    the next one with the same `name`.

    Args:
        env_id: What the actors play: a gymnasium id, or `package.module:factory`, importable in the image. A Python
            factory cannot travel.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        n_actors: How many containers.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: Times `batch_size`, the capacity of the queue. Between actors of equal speed
            no rollout is then more than `ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size)`
            updates old.
        actor_env_seeds: A seed an actor for its environments; derived from `seed` where None.
        actor_agent_seeds: A seed an actor for its sampling of actions; likewise.
        env_kwargs: Keyword arguments of the environment, such as JSON can say.
        image: The image, whose entry point is the actor's: `rollcast-actor`, or one built on it.
        name: What the containers are called, before the run and the slot. Learners of the same name may run at once.
        network: A bridge network that the engine has, or `host`; None: one of their own, removed with them.
        memory_limit_bytes: Memory of a container, without swap; None: no limit.
        cpu_limit: Cores of a container, 0.5 for half of one; None: no limit.
        environment: Further variables of the containers.
        labels: Further labels of the containers and their network.
        envs_per_actor: Environments each of them steps at once.
        seed: From which all other seeds derive.
        addresses: Where to listen besides, for the control API and for actors from elsewhere.
        max_actors: Actors that may be alive at once, those from elsewhere included.
        max_policy_lag: Rollouts that are more versions old are dropped and counted; None: none is.
        bounded_staleness: Actors wait for the newest policy before they start a rollout.
        on_actor_failure: Start it again, or fail. One that ends because of its settings is not started again.
        max_restarts: How often an actor may fail in a row before the run fails.
        reconnect_timeout_s: How long an actor waits for a learner that is gone before it ends.
        control: Who may steer over `LearnerService`; None: it tells the status only.
        security: What is asked of clients at `addresses`.
        collect_timeout_s: How long `collect_outputs` waits before it gives up.
        log_level: What the actors log; the last lines are in the error when one fails.

    Raises:
        ConfigurationError: A number, a name, the seeds or the keyword arguments cannot be right.
    """

    def __init__(
        self,
        env_id: str,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        queue_out_of_sync_factor: float = 1.0,
        actor_env_seeds: Sequence[int] | None = None,
        actor_agent_seeds: Sequence[int] | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        image: str = "rollcast-actor",
        name: str = "rollcast",
        network: str | None = None,
        memory_limit_bytes: int | None = None,
        cpu_limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        envs_per_actor: int = 1,
        seed: int = 0,
        addresses: Sequence[str] = (),
        max_actors: int = 64,
        max_policy_lag: int | None = None,
        bounded_staleness: bool = True,
        on_actor_failure: Literal["restart", "fail"] = "restart",
        max_restarts: int = 10,
        reconnect_timeout_s: float = 60.0,
        control: LearnerControl | None = None,
        security: ServerSecurity = PLAIN_SERVER,
        collect_timeout_s: float = 600.0,
        log_level: str = "INFO",
    ) -> None:
        super().__init__(
            None,
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
            control=control,
            security=security,
            collect_timeout_s=collect_timeout_s,
            actor_names=[f"docker-{slot}" for slot in range(n_actors)],
        )
        if n_actors < 1:
            raise ConfigurationError(f"n_actors is {n_actors}; expected at least 1")
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"name is {name!r}; expected at most 64 letters, digits, '_', '.' and '-', the first a letter or digit"
            )
        for limit, value in (("memory_limit_bytes", memory_limit_bytes), ("cpu_limit", cpu_limit)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"{limit} is {value}; expected more than 0, or None for no limit")
        self._arguments = (
            f"--env-id={env_id}",
            f"--env-kwargs={_as_json(env_kwargs or {})}",
            f"--envs-per-actor={envs_per_actor}",
            # the network this learner was told to use; an actor imports no other
            f"--network={policy.spec.network}",
            f"--reconnect-timeout-s={reconnect_timeout_s}",
            f"--log-level={log_level}",
        )
        self._image = image
        self._name = name
        self._network = network
        self._limits = (memory_limit_bytes, cpu_limit)
        self._environment = dict(environment or {})
        self._labels = dict(labels or {})
        self._max_restarts = max_restarts if on_actor_failure == "restart" else 0
        self._further_addresses = tuple(addresses)
        # Theirs alone: the bridge has no TLS, and other containers of this machine may reach it.
        self._token = secrets.token_urlsafe(32)
        self._run: DockerRun | None = None
        self._containers: DockerContainers | None = None

    def start(self) -> None:
        """Removes what dead learners of this name have left, begins to serve, and starts the containers.

        Raises:
            AddressInUseError: Somebody else serves one of the addresses.
            ConfigurationError: The engine has no such image or network, or the SDK is not installed.
            ContainerEngineError: No engine answers, or it does not start the containers.
        """
        if self._run is not None:
            return
        self._run = run = DockerRun(connect_to_engine(), self._name, self._labels)
        try:
            run.check_image(self._image)
            run.remove_leftovers()
            network = self._network or run.make_network()
            host = "127.0.0.1" if network == "host" else run.gateway(network)
            self._addresses = (f"{host}:0", *self._further_addresses)
            super().start()
            self._containers = DockerContainers(
                [self._plan(actor_id, network, self.addresses[0]) for actor_id in self._actor_names],
                run,
                max_restarts=self._max_restarts,
                on_exit=self._note_exit,
            )
            self._containers.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the containers and the server; leaves no container, network, thread or socket behind.

        An engine that does not answer keeps what it has until the next `start`; the log says so.
        """
        super().stop()
        if self._run is None:
            return
        try:
            if self._containers is not None:
                self._containers.stop(0.0 if self.is_in_a_hurry else _STOP_TIMEOUT_S)
            self._run.remove()
        except ContainerEngineError as error:
            logger.warning(
                "%s; containers may be left, until a learner named %r starts again or they are removed with: "
                "docker rm -f $(docker ps -aq --filter label=%s=%s)",
                error,
                self._name,
                RUN_LABEL,
                self._run.run_id,
            )
        self._run.close()
        self._run = self._containers = None

    def _security_at(self, address: str) -> ServerSecurity:
        """The containers' own token at the address in their network, which is always the first."""
        if address != self._addresses[0]:
            return self._security
        return ServerSecurity(tokens=TokenTable({self._token: Role.ACTOR}), insecure=True)

    def _plan(self, actor_id: str, network: str, address: str) -> ContainerPlan:
        memory_limit_bytes, cpu_limit = self._limits
        return ContainerPlan(
            actor_id=actor_id,
            image=self._image,
            arguments=(
                f"--learner-address={address}",
                f"--actor-id={actor_id}",
                *self._arguments,
                *self._limit_arguments(),
            ),
            environment={**self._environment, "ROLLCAST_TOKEN": self._token, "ROLLCAST_INSECURE": "true"},
            network=network,
            memory_limit_bytes=memory_limit_bytes,
            cpu_limit=cpu_limit,
        )

    def _limit_arguments(self) -> Sequence[str]:
        """Returns what an image of another version may not know, where it is needed."""
        if self.limits.max_rollout_bytes == DEFAULT_LIMITS.max_rollout_bytes:
            return ()
        return (f"--max-rollout-bytes={self.limits.max_rollout_bytes}",)

    def _look_after_actors(self) -> None:
        if self._containers is not None:
            self._containers.look_after()


def _as_json(env_kwargs: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(env_kwargs))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"env_kwargs are {env_kwargs!r}, which JSON cannot say: {error}; expected strings, numbers, booleans, "
            "None, lists and dictionaries"
        ) from error
