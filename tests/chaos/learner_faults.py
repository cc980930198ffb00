"""The faults of a learner, its files, its disk and its clock, drawn from a seed."""

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.chaos.clock import Clock
from tests.chaos.disk import SmallDisk
from tests.chaos.learner_process import LearnerProcess
from tests.chaos.lineage import Lineage
from tests.chaos.run_files import checkpoints, damage, segments

LearnerKind = Literal[
    "learner_kill",
    "learner_term",
    "learner_freeze",
    "kill_saving",
    "truncated_file",
    "flipped_file",
    "truncated_log",
    "flipped_log",
    "disk_full",
    "learner_clock",
    "actors_clock",
]

# The weight of each. Another process takes seconds of both cores to start.
_WEIGHTS: Final[dict[LearnerKind, int]] = {
    "learner_kill": 6,
    "learner_term": 3,
    "learner_freeze": 5,
    "kill_saving": 5,
    "truncated_file": 3,
    "flipped_file": 3,
    "truncated_log": 3,
    "flipped_log": 3,
    "disk_full": 4,
    "learner_clock": 3,
    "actors_clock": 3,
}
LEARNER_KINDS: Final = tuple(_WEIGHTS)
assert get_args(LearnerKind) == LEARNER_KINDS
# There is a log with --durable only.
LOG_KINDS: Final[tuple[LearnerKind, ...]] = ("truncated_log", "flipped_log")

# Keepalive finds a dead connection after 9 s: some are longer.
_FREEZES_S: Final = (*4 * (0.2, 1.0, 3.0), *2 * (12.0,), 65.0)
_FULL_S: Final = (2.5, 4.0)
_SHORT_S: Final = 3.0
_CLOCK_S: Final = 12 * 3600
# The seconds in which libfaketime looks again, and every process notices.
_AFTER_CLOCK_S: Final = 2.0
# The joins that each actor may make in that time: a storm is more.
_MAX_JOINS: Final = 10
_SAY_TIMEOUT_S: Final = 180.0
_LOOK_S: Final = 0.05


@dataclass
class Scene:
    """The possible victims of faults, and the failures noted so far.

    Attributes:
        damaged: The name of the checkpoint that was damaged last.
    """

    learner: LearnerProcess
    lineage: Lineage
    disk: SmallDisk
    clocks: dict[str, Clock]
    n_actors: int
    durable: bool
    # what was acknowledged to every actor, by incarnation
    acknowledged: Callable[[], Mapping[str, Mapping[int, int]]]
    failures: list[str] = field(default_factory=list)
    damaged: str = ""

    def await_that(self, condition: Callable[[], bool], what: str, stop: threading.Event) -> None:
        """Waits until the condition holds; notes a failure if it does not by a deadline."""
        deadline = time.monotonic() + _SAY_TIMEOUT_S
        while not condition() and not stop.wait(_LOOK_S):
            if time.monotonic() > deadline:
                self.failures.append(f"not within {_SAY_TIMEOUT_S:.0f} s: {what}")
                return


@dataclass(frozen=True)
class LearnerFault:
    """One fault.

    Attributes:
        seconds: The time that it lasts, or by which a clock is set, in seconds.
        seed: The seed of everything else that is drawn.
    """

    kind: LearnerKind
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.seconds:g} s" if self.seconds else self.kind

    def inject(self, scene: Scene, stop: threading.Event) -> None:
        """Injects the fault, and ends it if it lasts; `stop` ends it early."""
        rng, learner = random.Random(self.seed), scene.learner
        match self.kind:
            case "learner_kill":
                with learner.down():
                    pass
            case "learner_term":
                with learner.down(signal.SIGTERM):
                    pass
            case "learner_freeze":
                learner.send_signal(signal.SIGSTOP)
                stop.wait(self.seconds)
                learner.send_signal(signal.SIGCONT)
            case "kill_saving":
                _kill_while_saving(scene, rng, stop)
            case "truncated_file" | "flipped_file":
                _damage_newest(scene, rng, stop, truncated=self.kind == "truncated_file")
            case "truncated_log" | "flipped_log":
                _damage_log(scene, rng, truncated=self.kind == "truncated_log")
            case "disk_full":
                _fill_disk(scene, rng, stop, self.seconds)
            case "learner_clock" | "actors_clock":
                _set_clock(scene, self.kind, int(self.seconds), stop)


def draw_learner_faults(
    n_faults: int, rng: random.Random, *, short: bool, only: Sequence[LearnerKind] = ()
) -> list[LearnerFault]:
    """Draws faults.

    Args:
        short: Leaves out faults that last longer than a few seconds.
        only: The kinds of faults; none: all.
    """
    kinds = list(only) or list(LEARNER_KINDS)
    return [
        LearnerFault(kind, _seconds(kind, rng, short=short), rng.randrange(2**32))
        for kind in rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds], k=n_faults)
    ]


def _seconds(kind: LearnerKind, rng: random.Random, *, short: bool) -> float:
    match kind:
        case "learner_freeze":
            return rng.choice([s for s in _FREEZES_S if not short or s <= _SHORT_S])
        case "disk_full":
            return rng.choice(_FULL_S)
        case "learner_clock" | "actors_clock":
            return float(rng.randrange(-_CLOCK_S, _CLOCK_S))
    return 0.0


def _kill_while_saving(scene: Scene, rng: random.Random, stop: threading.Event) -> None:
    """Kills it at any byte of a checkpoint that an operator has asked for."""

    def ask() -> None:
        try:
            with LearnerClient(scene.learner.address, timeout_s=5.0) as client:
                client.save_checkpoint()
        except RollcastError:  # it is about to be killed
            pass

    asking = threading.Thread(target=ask, name="chaos-operator", daemon=True)
    asking.start()
    folder = scene.learner.run_dir / "checkpoints"
    scene.await_that(lambda: any(folder.glob(".*.tmp")) or not asking.is_alive(), "a checkpoint being written", stop)
    stop.wait(rng.choice((0.0, 0.002, 0.01, 0.05)))
    with scene.learner.down():
        pass
    asking.join(_SAY_TIMEOUT_S)


def _damage_newest(scene: Scene, rng: random.Random, stop: threading.Event, *, truncated: bool) -> None:
    run_dir, log = scene.learner.run_dir, scene.learner.log

    def may_lose_one() -> bool:
        """Returns True if the log has what came after the previous checkpoint: the newest is no substitute itself."""
        *others, newest = [path.name for path in checkpoints(run_dir)] or [""]
        return bool(others) and newest > scene.damaged

    scene.await_that(may_lose_one, "two checkpoints, the newest after the last damage", stop)
    with scene.learner.down():
        *others, newest = checkpoints(run_dir)
        if not others:  # killed while the first of two was being replaced
            return
        damaged, scene.damaged = damage(newest.rglob("*"), rng, truncated=truncated), newest.name
        offset = log.stat().st_size
    said = f"the checkpoint {newest} is damaged"
    scene.await_that(lambda: scene.learner.said(said, offset), f"{said} ({damaged.name}) in the log", stop)


def _damage_log(scene: Scene, rng: random.Random, *, truncated: bool) -> None:
    """Notes as lost what only the damaged file had; the learner has to go on with the rest."""
    with scene.learner.down():
        damage(segments(scene.learner.run_dir), rng, truncated=truncated)
        scene.lineage.forgive(scene.acknowledged())


def _fill_disk(scene: Scene, rng: random.Random, stop: threading.Event, seconds: float) -> None:
    learner, run_dir = scene.learner, scene.learner.run_dir
    offset, before = learner.log.stat().st_size, scene.lineage.n_taken
    scene.disk.fill()
    try:
        said = "No space left on device"
        scene.await_that(lambda: learner.said(said, offset), f"{said!r} in the log", stop)
        stop.wait(seconds)
        if not scene.durable:  # then nothing can be acknowledged
            scene.await_that(lambda: scene.lineage.n_taken > before, "learning while the disk is full", stop)
        if rng.random() < 0.5:
            with learner.down():
                scene.disk.free()
    finally:
        scene.disk.free()
    last = {path.name for path in checkpoints(run_dir)}
    scene.await_that(
        lambda: any(path.name not in last for path in checkpoints(run_dir)), "a checkpoint when the disk is free", stop
    )


def _set_clock(scene: Scene, kind: LearnerKind, seconds: int, stop: threading.Event) -> None:
    joins = scene.lineage.n_joins
    scene.clocks[kind].set(seconds)
    stop.wait(_AFTER_CLOCK_S)
    joins = scene.lineage.n_joins - joins
    if joins > _MAX_JOINS * scene.n_actors:
        scene.failures.append(f"{joins} joins within {_AFTER_CLOCK_S:g} s after {kind} was set by {seconds} s")
