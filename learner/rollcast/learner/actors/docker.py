"""Actors in containers on this machine, for environments whose dependencies the learner lacks."""

import dataclasses
import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.docker_containers import ContainerPlan, DockerContainers
from rollcast.learner.actors.docker_engine import RUN_LABEL, DockerRun, connect_to_engine
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.server import Endpoint
from rollcast.services.errors import ConfigurationError, ContainerEngineError
from rollcast.services.limits.limits import DEFAULT_LIMITS
from rollcast.services.security.security import ServerSecurity
from rollcast.services.security.tokens import Role, TokenTable

logger = logging.getLogger(__name__)

# The time in which the actors may end by themselves.
_STOP_TIMEOUT_S = 3.0

# The engine allows these characters in a name; run and slot follow.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}")


class DockerDistributedActors(ServedDistributedActors):
    """Actors in `n_actors` containers. A dead container is restarted, and no thread waits forever for a container.

    The learner listens at its own address in the containers' network, so it must run on the engine's machine.
    Containers of a killed learner end by themselves after `reconnect_timeout_s`. The next learner with the same `name`
    removes them.

    Args:
        env_id: The environment: a gymnasium id, or `package.module:factory` that the image can import. A Python factory
            cannot be sent.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        n_actors: The number of containers.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: The capacity of the queue, in batches. With actors of equal speed, no rollout is then
            more than `ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size)` updates old.
        actor_env_seeds: One seed per actor for its environments; None derives them from `seed`.
        actor_agent_seeds: One seed per actor for its sampling of actions; None derives them from `seed`.
        env_kwargs: The keyword arguments of the environment; JSON values only.
        atari: True: the environment is an ALE game, preprocessed as with `--atari`.
        image: The image, with the actor's entry point: `rollcast-actor`, or an image built on it.
        name: The prefix of the containers' names, before run and slot. Learners may share a name.
        network: A bridge network of the engine, or `host`; None makes one, and removes it at the end.
        memory_limit_bytes: The memory of a container, without swap; None for no limit.
        cpu_limit: The cores of a container, 0.5 for half of one; None for no limit.
        environment: Additional environment variables for the containers.
        labels: Additional labels for the containers and their network.
        envs_per_actor: The environments that each container steps at once.
        seed: The seed from which missing seeds are derived.
        serving: The serving options; `addresses` and `security` apply to other actors and the control API.
        on_actor_failure: Whether a failed actor is restarted, or ends the run. Errors in its settings always do.
        max_restarts: The number of consecutive failures of one actor after which the run fails.
        reconnect_timeout_s: The seconds that an actor waits for a lost learner before it ends.
        log_level: The level at which actors log; an actor's error contains its last lines.

    Raises:
        ConfigurationError: A number, a name, the seeds or the keyword arguments are invalid.
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
        atari: bool = False,
        image: str = "rollcast-actor",
        name: str = "rollcast",
        network: str | None = None,
        memory_limit_bytes: int | None = None,
        cpu_limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        envs_per_actor: int = 1,
        seed: int = 0,
        serving: ServingOptions | None = None,
        on_actor_failure: Literal["restart", "fail"] = "restart",
        max_restarts: int = 10,
        reconnect_timeout_s: float = 60.0,
        log_level: str = "INFO",
    ) -> None:
        super().__init__(
            None,
            policy,
            n_rollout_steps,
            n_actors,
            batch_size,
            queue_out_of_sync_factor,
            envs_per_actor=envs_per_actor,
            seeds=ActorSeeds.for_actors(seed, n_actors, env_seeds=actor_env_seeds, agent_seeds=actor_agent_seeds),
            serving=serving or ServingOptions(),
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
        arguments = [
            f"--env-id={env_id}",
            f"--env-kwargs={_as_json(env_kwargs or {})}",
            f"--envs-per-actor={envs_per_actor}",
            # An actor imports no other network than the one it was started with.
            f"--network={policy.spec.network}",
            f"--reconnect-timeout-s={reconnect_timeout_s}",
            f"--log-level={log_level}",
        ]
        if atari:
            arguments.append("--atari")
        if self._limits.max_rollout_bytes != DEFAULT_LIMITS.max_rollout_bytes:
            # An image of an older version may not know the option, so it is given only if necessary.
            arguments.append(f"--max-rollout-bytes={self._limits.max_rollout_bytes}")
        # For these containers alone: the bridge has no TLS, and other containers of this machine may reach it.
        self._token = secrets.token_urlsafe(32)
        # The arguments of every actor, without those that `start` determines.
        self._common = ContainerPlan(
            actor_id="",
            image=image,
            arguments=tuple(arguments),
            environment={**(environment or {}), "ROLLCAST_TOKEN": self._token, "ROLLCAST_INSECURE": "true"},
            network="",
            memory_limit_bytes=memory_limit_bytes,
            cpu_limit=cpu_limit,
        )
        self._name = name
        self._network = network
        self._labels = dict(labels or {})
        self._max_restarts = max_restarts if on_actor_failure == "restart" else 0
        self._run: DockerRun | None = None
        self._containers: DockerContainers | None = None

    def start(self) -> None:
        """Removes leftovers of dead learners with this name, begins to serve, and starts the containers.

        Raises:
            AddressInUseError: Another process serves one of the addresses.
            ConfigurationError: The image or the network does not exist, or the SDK is not installed.
            ContainerEngineError: No engine answers, or it cannot start the containers.
        """
        if self._run is not None:
            return
        self._run = run = DockerRun(connect_to_engine(), self._name, self._labels)
        try:
            run.check_image(self._common.image)
            run.remove_leftovers()
            network = self._network or run.make_network()
            host = "127.0.0.1" if network == "host" else run.gateway(network)
            of_containers = ServerSecurity(tokens=TokenTable({self._token: Role.ACTOR}), insecure=True)
            self._serve([Endpoint(f"{host}:0", of_containers), *self._endpoints()])
            self._containers = DockerContainers(
                [self._plan(actor_id, network, self.addresses[0]) for actor_id in self._work.names],
                run,
                max_restarts=self._max_restarts,
                on_exit=self._note_exit,
                has_rollouts=lambda: self.n_rollouts > 0,
            )
            self._containers.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the containers and the server; removes all containers, networks, threads and sockets.

        If the engine does not answer, logs a warning: containers and network remain until the next `start`.
        """
        super().stop()
        if self._run is None:
            return
        try:
            if self._containers is not None:
                self._containers.stop(0.0 if self.cancels_waits else _STOP_TIMEOUT_S)
            self._run.remove()
        except ContainerEngineError as error:
            logger.warning(
                "%s; containers may remain until a learner named %r starts again; remove them with: "
                "docker rm -f $(docker ps -aq --filter label=%s=%s)",
                error,
                self._name,
                RUN_LABEL,
                self._run.run_id,
            )
        self._run.close()
        self._run = self._containers = None

    def _plan(self, actor_id: str, network: str, address: str) -> ContainerPlan:
        own = (f"--learner-address={address}", f"--actor-id={actor_id}")
        return dataclasses.replace(
            self._common, actor_id=actor_id, arguments=(*own, *self._common.arguments), network=network
        )

    def _look_after_actors(self) -> None:
        if self._containers is not None:
            self._containers.look_after()


def _as_json(env_kwargs: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(env_kwargs))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"env_kwargs are {env_kwargs!r}, which JSON cannot represent: {error}; expected strings, numbers, "
            "booleans, "
            "None, lists and dictionaries"
        ) from error
