"""Learner and actors in containers of the real engine: killed, paused, stopped, and taken off their network."""

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, get_args
from uuid import uuid4

import docker
from docker.errors import APIError
from docker.models.containers import Container

from tests.processes import ROOT, wait_until

ContainerKind = Literal["docker_kill", "docker_stop", "docker_pause", "docker_disconnect"]
CONTAINER_KINDS: Final[tuple[ContainerKind, ...]] = get_args(ContainerKind)

# The folders of a container: this package, and its books and its run.
_CODE: Final = "/opt/chaos"
BOOKS: Final = Path("/books")
_LASTING_S: Final = (0.5, 2.0, 6.0, 15.0)
_SHORT_S: Final = 3.0
_STOP_TIMEOUT_S: Final = 60
_TAIL_LINES: Final = 20


class ChaosContainer:
    """One container, on a network of its own suite.

    Args:
        alias: The container's name there.
    """

    def __init__(self, container: Container, network: docker.models.networks.Network, alias: str) -> None:
        self.alias = alias
        self.failures: list[str] = []
        self.n_starts = 1
        self._container, self._network = container, network

    def kill(self) -> None:
        """`docker kill`, and starts it again."""
        self._note_end()
        self._container.kill()
        self._container.wait(timeout=_STOP_TIMEOUT_S)
        self._start()

    def stop(self, *, again: bool = True) -> None:
        """`docker stop`, which is SIGTERM, and starts it again where it is to."""
        self._note_end()
        self._container.stop(timeout=_STOP_TIMEOUT_S)
        code = self._container.wait(timeout=_STOP_TIMEOUT_S)["StatusCode"]
        if code:
            self.failures.append(f"{self.alias} ended with {code} after docker stop:\n{self._tail()}")
        if again:
            self._start()

    def pause(self, seconds: float, stop: threading.Event) -> None:
        """`docker pause`, and unpauses it."""
        wait_until(self._is_paused, f"{self.alias} is paused", _STOP_TIMEOUT_S)
        stop.wait(seconds)
        self._container.unpause()

    def disconnect(self, seconds: float, stop: threading.Event) -> None:
        """`docker network disconnect`, and connects it again."""
        self._network.disconnect(self._container)
        stop.wait(seconds)
        self._network.connect(self._container, aliases=[self.alias])

    def _is_paused(self) -> bool:
        try:
            self._container.pause()
        except APIError as error:
            # runc gives up soon where the container's processes get no core to stop on
            if "unable to freeze" not in str(error):
                raise
            return False
        return True

    def _start(self) -> None:
        self.n_starts += 1
        self._container.start()

    def _note_end(self) -> None:
        """Before it is made to end: that it has not ended by itself."""
        self._container.reload()
        if self._container.status != "running":
            self.failures.append(f"{self.alias} was {self._container.status}:\n{self._tail()}")
            self._container.start()

    def _tail(self) -> str:
        return str(self._container.logs(tail=_TAIL_LINES).decode(errors="replace"))


class ChaosNetwork:
    """A network, and the containers on it; left, all of it is removed.

    Args:
        folder: The folder that the containers see as `BOOKS`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"rollcast-chaos-{uuid4().hex[:8]}"
        self._made: list[Container] = []

    def __enter__(self) -> Self:
        self._engine = docker.from_env(timeout=120)
        self._network = self._engine.networks.create(self._name)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for container in self._made:
            (self._folder / f"{container.name}.log").write_bytes(container.logs())
            container.remove(force=True)
        self._network.remove()
        self._engine.close()

    def run(self, image: str, alias: str, command: Sequence[object], variables: Mapping[str, str]) -> ChaosContainer:
        """Starts `python -m COMMAND` in an image, under a name that is also its host's."""
        container = self._engine.containers.create(
            image,
            entrypoint=["python", "-m"],
            command=[str(part) for part in command],
            name=f"{self._name}-{alias}",
            hostname=alias,
            # what it writes is this user's, who removes it
            user="root",
            environment={"PYTHONPATH": _CODE, **variables},
            volumes=[f"{ROOT / 'tests'}:{_CODE}/tests:ro", f"{self._folder}:{BOOKS}"],
            healthcheck={"test": ["NONE"]},
            network=self._name,
        )
        self._made.append(container)
        self._network.disconnect(container)
        self._network.connect(container, aliases=[alias])
        container.start()
        return ChaosContainer(container, self._network, alias)


@dataclass(frozen=True)
class ContainerFault:
    """One fault.

    Attributes:
        seconds: The time after which it is ended, in seconds; 0 for kinds that do not last.
    """

    kind: ContainerKind
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} for {self.seconds:g} s" if self.seconds else self.kind

    def inject(self, container: ChaosContainer, stop: threading.Event) -> None:
        """Injects the fault, and ends it if it lasts; `stop` ends it early."""
        match self.kind:
            case "docker_kill":
                container.kill()
            case "docker_stop":
                container.stop()
            case "docker_pause":
                container.pause(self.seconds, stop)
            case "docker_disconnect":
                container.disconnect(self.seconds, stop)


def draw_container_faults(n_faults: int, rng: random.Random, *, short: bool) -> list[ContainerFault]:
    """Draws faults; `short` leaves out those that last longer than a few seconds."""
    return [
        ContainerFault(
            kind,
            rng.choice([s for s in _LASTING_S if not short or s <= _SHORT_S])
            if kind in {"docker_pause", "docker_disconnect"}
            else 0.0,
        )
        for kind in rng.choices(CONTAINER_KINDS, k=n_faults)
    ]
