"""Actors on spot machines: some get SIGTERM, and have half a minute; others come in their place.

Every actor is a process under a name of its own, as on a machine that comes once and never again. They are forked from
a process that has imported everything (`tests.zygote`): a new machine imports on its own cores, which the actors here
share.
"""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcast.services.status.status import ActorState
from tests.chaos.acting import read_acknowledgements
from tests.chaos.learners import PromptLearner
from tests.chaos.processes import acting_options
from tests.chaos.report import Report
from tests.processes import ROOT, environment, wait_until, zygote

# The time that providers of such machines give between the notice and the end.
GRACE_S = 30.0
_PERIOD_TIMEOUT_S = 120.0
_LOOK_S = 0.02


class SpotActor:
    """One actor: a process that is not started again.

    Args:
        folder: The folder for its acknowledgements.

    Attributes:
        acknowledgements: The file of what it was acknowledged.
        alive_from: When it was first seen to stream; None: not yet.
        alive_until: When it got SIGTERM; None: not yet.
    """

    def __init__(self, actor_id: str, address: str, folder: Path, *, n_envs: int, step_s: float) -> None:
        self.actor_id = actor_id
        self.acknowledgements = folder / f"{actor_id}.acknowledged"
        self.alive_from: float | None = None
        self.alive_until: float | None = None
        self._process = zygote().fork(
            "tests.chaos.acting",
            [str(self.acknowledgements), *acting_options(actor_id, address, n_envs=n_envs, step_s=step_s)],
            cwd=ROOT,
            environment=environment(),
            merge_errors=True,
        )

    def preempt(self) -> None:
        """Sends SIGTERM, the notice."""
        self._process.terminate()
        self.alive_until = time.monotonic()

    def await_end(self) -> str | None:
        """Waits until it is gone, and returns what was wrong with its end; None: nothing."""
        assert self.alive_until is not None, "it gets its notice first"
        try:
            code = self._process.wait(max(0.0, self.alive_until + GRACE_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"{self.actor_id} was there {GRACE_S:.0f} s after SIGTERM"
        printed = self._process.stdout.read()
        return None if code == 0 else f"{self.actor_id} ended with {code} after SIGTERM:\n{printed[-1500:]}"

    def close(self) -> None:
        """Kills it, if it is still there."""
        # It may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(GRACE_S)
        self._process.stdout.close()

    def alive_s(self, began: float, ended: float) -> float:
        """Returns how long it was alive, from its stream to its notice, between two times."""
        if self.alive_from is None:
            return 0.0
        until = ended if self.alive_until is None else min(ended, self.alive_until)
        return max(0.0, until - max(began, self.alive_from))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A period, and the rollouts that were played in it.

    Attributes:
        n_taken: The actors that got SIGTERM at its beginning.
        alive_s: The seconds that actors were alive, all together.
    """

    n_taken: int
    n_rollouts: int
    alive_s: float
    seconds: float

    @property
    def rate(self) -> float:
        """Rollouts a second of a living actor."""
        return self.n_rollouts / self.alive_s


class SpotFleet:
    """A number of actors that stays the same, while machines come and go. Entered, all of them stream.

    Args:
        folder: The folder for acknowledgements.
        seed: Draws the actors that are taken.

    Attributes:
        failures: What was wrong with the ends of actors.
        slowest_end_s: The longest time from SIGTERM to the end of a process, in seconds.
    """

    def __init__(
        self, serving: PromptLearner, folder: Path, *, n_actors: int, n_envs: int, step_s: float, seed: int
    ) -> None:
        self._serving, self._folder, self._n_actors = serving, folder, n_actors
        self._n_envs, self._step_s, self._rng = n_envs, step_s, random.Random(seed)
        self._numbers = itertools.count()
        self.failures: list[str] = []
        self.slowest_end_s = 0.0
        self._actors: list[SpotActor] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="chaos-spot-watch", daemon=True)

    def __enter__(self) -> "SpotFleet":
        self._thread.start()
        self._replace(self._n_actors)
        wait_until(lambda: all(actor.alive_from for actor in self._actors), "all actors", _PERIOD_TIMEOUT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._thread.join(_PERIOD_TIMEOUT_S)
        for actor in self._actors:
            actor.close()

    @property
    def n_starts(self) -> int:
        """Processes that were started."""
        return len(self._actors)

    def period(self, seconds: float, n_taken: int) -> Period:
        """Takes so many actors and brings as many, and lets all play.

        Args:
            seconds: How long at least. It ends when every actor that is there has played since it began.
            n_taken: How many get SIGTERM at its beginning, all at once.
        """
        ledger, began = self._serving.ledger, time.monotonic()
        n_before = ledger.n_rollouts
        taken = self._rng.sample(self._there(), n_taken)
        for actor in taken:
            actor.preempt()
        self._replace(n_taken)
        self._await_ends(taken)
        there = self._there()
        counts = {actor.actor_id: ledger.count(actor.actor_id) for actor in there}
        wait_until(
            lambda: (
                time.monotonic() >= began + seconds
                and all(ledger.count(actor_id) > count for actor_id, count in counts.items())
            ),
            "rollouts of every actor that is there",
            seconds + _PERIOD_TIMEOUT_S,
        )
        ended = time.monotonic()
        return Period(
            n_taken=n_taken,
            n_rollouts=ledger.n_rollouts - n_before,
            alive_s=sum(actor.alive_s(began, ended) for actor in self._actors),
            seconds=ended - began,
        )

    def end(self) -> None:
        """Takes all that are there."""
        there = self._there()
        for actor in there:
            actor.preempt()
        self._await_ends(there)

    def acknowledged(self) -> dict[str, dict[int, int]]:
        """Returns the last sequence that was acknowledged, by actor and incarnation."""
        return {actor.actor_id: read_acknowledgements(actor.acknowledgements) for actor in self._actors}

    def _there(self) -> list[SpotActor]:
        return [actor for actor in self._actors if actor.alive_until is None]

    def _replace(self, n_actors: int) -> None:
        address = f"127.0.0.1:{self._serving.port}"
        for _ in range(n_actors):
            name = f"spot-{next(self._numbers)}"
            self._actors.append(SpotActor(name, address, self._folder, n_envs=self._n_envs, step_s=self._step_s))

    def _await_ends(self, actors: Sequence[SpotActor]) -> None:
        """Waits until actors are gone, and the learner says that they have left."""
        for actor in actors:
            if (fault := actor.await_end()) is not None:
                self.failures.append(fault)
            self.slowest_end_s = max(self.slowest_end_s, time.monotonic() - (actor.alive_until or 0.0))
        names = {actor.actor_id for actor in actors}

        def states() -> dict[str, ActorState]:
            return {info.actor_id: info.state for info in self._serving.actors.actor_infos}

        # An actor that has not left is reported below, with its state.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: all(states()[name] is ActorState.LEFT for name in names), "goodbyes", GRACE_S)
        self.failures.extend(
            f"{name} ended, and to the learner it is {state.name}"
            for name, state in states().items()
            if name in names and state is not ActorState.LEFT
        )

    def _look(self) -> None:
        """Notes when actors begin to stream."""
        while not self._closing.wait(_LOOK_S):
            if all(actor.alive_from for actor in self._actors):
                continue
            streaming = {i.actor_id for i in self._serving.actors.actor_infos if i.state is ActorState.STREAMING}
            for actor in self._actors:
                if actor.alive_from is None and actor.actor_id in streaming:
                    actor.alive_from = time.monotonic()


def run_spot(
    folder: Path,
    *,
    n_actors: int = 20,
    n_envs: int = 2,
    n_rounds: int,
    interval_s: float,
    step_s: float,
    seed: int = 0,
) -> tuple[Report, list[tuple[Period, Period]]]:
    """Lets actors play, in turns a period in peace and one at whose beginning a third of them is taken.

    Args:
        n_rounds: Pairs of periods.
        interval_s: How long a period is at least, in seconds.
        seed: Draws the actors that are taken.

    Returns:
        The books, and the periods: in peace, and with preemptions.
    """
    report, began = Report("spot", seed), time.monotonic()
    n_taken = -(-n_actors // 3)
    with PromptLearner(seed) as serving:
        ledger = serving.ledger
        report.entries = ledger.entries
        options = {"n_actors": n_actors, "n_envs": n_envs, "step_s": step_s, "seed": seed}
        with SpotFleet(serving, folder, **options) as fleet:
            rounds = [(fleet.period(interval_s, 0), fleet.period(interval_s, n_taken)) for _ in range(n_rounds)]
            fleet.end()
            acknowledged = fleet.acknowledged()
        report.notes["sent again and dropped"] = serving.actors.duplicate_rollouts
        report.notes["refused"] = serving.actors.rejected_rollouts
        report.failures = fleet.failures
        report.n_starts = fleet.n_starts
    for actor_id, sequences in acknowledged.items():
        ledger.check_acknowledged(actor_id, sequences)
    report.n_rollouts = ledger.n_rollouts
    report.n_acknowledged = sum(sum(sequences.values()) for sequences in acknowledged.values())
    report.notes["milliseconds of the slowest end"] = round(fleet.slowest_end_s * 1e3)
    if serving.failure is not None:
        report.failures.append(f"the trainer's thread ended with {serving.failure!r}")
    report.seconds = time.monotonic() - began
    return report, rounds
