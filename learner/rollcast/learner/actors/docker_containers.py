"""Starts actors' containers, watches them, restarts them with backoff, and ends them."""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollcast.learner.actors.docker_engine import DockerRun, engine_asked_to, remove_container
from rollcast.learner.actors.supervision import ActorEnd, Supervision
from rollcast.services.process.exit_codes import BAD_SETTINGS

logger = logging.getLogger(__name__)

# The interval between queries of the containers' states, whose cost grows with their number.
_LOOK_S = 1.0

_LOG_LINES = 20
_LOG_CHARACTERS = 4000

# Logs go to a bounded file whatever the engine's default is, so that they can be read.
_LOG_CONFIG = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """The settings of one actor's container.

    Attributes:
        actor_id: The actor's name.
        image: The image, whose entry point is `python -m rollcast.actor`.
        arguments: The command line.
        environment: The environment variables.
        network: The network, or `host`.
        memory_limit_bytes: The memory limit, above which the container is killed; None: no limit.
        cpu_limit: The largest number of cores; None: no limit.
    """

    actor_id: str
    image: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    network: str
    memory_limit_bytes: int | None
    cpu_limit: float | None


class _Container:
    """An actor and its present container, if any."""

    def __init__(self, plan: ContainerPlan, run: DockerRun, name: str) -> None:
        self.actor_id: Final = plan.actor_id
        self._plan = plan
        self._run = run
        self._name = name
        self._id: str | None = None
        # The last known states of the run's containers; None if none are known since the launch.
        self.states: dict[str, str] | None = None

    def launch(self) -> None:
        plan = self._plan
        with engine_asked_to(f"start the container {self._name} of the image {plan.image!r}"):
            container = self._run.client.containers.create(
                plan.image,
                list(plan.arguments),
                name=self._name,
                environment=dict(plan.environment),
                labels=self._run.labels,
                network=plan.network,
                mem_limit=plan.memory_limit_bytes,
                # the default would add as much swap space again
                memswap_limit=plan.memory_limit_bytes,
                nano_cpus=None if plan.cpu_limit is None else int(plan.cpu_limit * 1e9),
                # an actor needs no rights beyond its user's
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                # passes SIGTERM on while Python is still starting, and reaps processes that environments leave
                init=True,
                log_config=_LOG_CONFIG,
            )
            self._id, self.states = container.id, None
            container.start()

    def take_end(self) -> ActorEnd | None:
        if self._id is None or self.states is None or self.states.get(self._id) not in (None, "exited", "dead"):
            return None
        container_id, self._id = self._id, None
        with engine_asked_to(f"report how the container {self._name} ended"):
            end = self._describe(container_id)
            remove_container(self._run.client, container_id)
        return end

    def _describe(self, container_id: str) -> ActorEnd:
        from docker.errors import NotFound

        try:
            container = self._run.client.containers.get(container_id)
            log = container.logs(tail=_LOG_LINES).decode(errors="replace")[-_LOG_CHARACTERS:].rstrip()
        except NotFound:
            return ActorEnd(f"the container {self._name} is gone: another process has removed it")
        state = container.attrs["State"]
        return ActorEnd(
            f"the container {self._name} ended with {self._reason(state)}\n"
            + (f"its last lines:\n{log}" if log else "its log is empty"),
            may_recover=state["ExitCode"] != BAD_SETTINGS,
            # an error that the actor has found itself, such as one of its environment
            may_be_repeated=state["ExitCode"] == 1,
        )

    def _reason(self, state: Mapping[str, Any]) -> str:
        code, limit = int(state["ExitCode"]), self._plan.memory_limit_bytes
        lack = (
            "it needed more memory than the machine had"
            if limit is None
            else f"it needed more memory than memory_limit_bytes = {limit:,}; raise it, or lower envs_per_actor"
        )
        if state["OOMKilled"]:
            return f"State.OOMKilled: {lack}"
        if code == 128 + signal.SIGKILL:
            # the engine misses some lacks of memory: the container's end removes the counter that it reads
            return f"exit code {code} (signal 9): another process killed it, or {lack}"
        return f"exit code {code} (signal {code - 128})" if code > 128 else f"exit code {code}"


class DockerContainers(Supervision):
    """A fixed set of actors in containers. Used by one thread, which calls `look_after` repeatedly.

    Args:
        plans: One plan for each actor.
        run: Makes and removes the containers.
        max_restarts: The number of consecutive failures after which an actor is not restarted.
        on_exit: Called with the actor's name and its end for every container that ended unexpectedly.
        has_rollouts: See `Supervision`.
    """

    def __init__(
        self,
        plans: list[ContainerPlan],
        run: DockerRun,
        *,
        max_restarts: int,
        on_exit: Callable[[str, ActorEnd], None],
        has_rollouts: Callable[[], bool] = lambda: True,
    ) -> None:
        self._run = run
        self._actors = [_Container(plan, run, f"{run.name}-{slot}") for slot, plan in enumerate(plans)]
        super().__init__(self._actors, max_restarts=max_restarts, on_exit=on_exit, has_rollouts=has_rollouts)
        self._next_look = 0.0

    def look_after(self) -> None:
        """Restarts actors that have ended; see `Supervision.look_after`.

        Raises:
            ActorFailedError: An actor cannot continue; the message has the last lines of its log.
            ContainerEngineError: The engine does not answer, or cannot restart an actor.
        """
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            states = self._run.states()
            for actor in self._actors:
                actor.states = states
        super().look_after()

    def stop(self, timeout_s: float) -> None:
        """Asks every container to end, and waits up to `timeout_s`. `DockerRun.remove` kills those that still run.

        Raises:
            ContainerEngineError: The engine does not answer.
        """
        from docker.errors import APIError

        for container_id in self._running():
            try:
                self._run.client.api.kill(container_id, signal.SIGTERM)
            except APIError as error:
                # 404 and 409 mean that it has ended by itself
                if error.status_code not in (404, 409):
                    logger.warning("%s does not end: %s", container_id[:12], error)
        deadline = time.monotonic() + timeout_s
        while self._running():
            if time.monotonic() > deadline:
                logger.warning("actors did not end within %.1f s; killing them", timeout_s)
                return
            time.sleep(0.05)

    def _running(self) -> list[str]:
        return [container_id for container_id, state in self._run.states().items() if state == "running"]
