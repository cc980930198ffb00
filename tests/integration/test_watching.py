"""A real learner with real actors, watched over `WatchHistory`."""

import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, NotReadyError
from rollcast.services.history.history import EventSeverity, HistoryEvent, HistoryUpdate, LearnerActivity
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo
from tests.processes import DEADLINE_S, ended, free_port, running, status_of, wait_until
from tests.unit.learner.history.test_lanes import rows_of

pytestmark = pytest.mark.slow

SLOW = ("--env-id", "tests.environments:SlowEnv", "--n-rollout-steps", 5, "--batch-size", 4, "--algorithm", "impala")


@dataclass
class Watched:
    """Everything that a watcher has seen of one learner."""

    updates: Iterator[HistoryUpdate]
    first: HistoryUpdate | None = None
    last: HistoryUpdate | None = None
    events: list[HistoryEvent] = field(default_factory=list)
    rows: dict[str, dict[float, list[int]]] = field(default_factory=lambda: defaultdict(dict))

    def until(self, condition, what: str) -> None:
        """Reads updates until a condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}; events: {self.events}"
            self.take(next(self.updates))

    def take(self, update: HistoryUpdate) -> None:
        self.first, self.last = self.first or update, update
        self.events += update.events
        for name in {lane.actor_id for lane in update.lanes}:
            rows = rows_of(update.lanes, name)
            assert not rows.keys() & self.rows[name].keys(), "each second comes once"
            self.rows[name] |= rows

    def states(self, name: str) -> set[ActingState]:
        """The states in which an actor spent a part of its time."""
        shares = np.array(list(self.rows[name].values()) or [[0] * len(ActingState)]).sum(axis=0)
        return {state for state in ActingState if shares[state.value - 1]}

    def said(self, who: str, text: str) -> bool:
        return any(event.who == who and text in event.text for event in self.events)


def listening(address: str) -> LearnerClient:
    wait_until(lambda: status_of(address).updates, "updates")
    return LearnerClient(address)


def test_a_watcher_sees_actors_act_wait_vanish_and_come_back(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", *SLOW, "--address", address, "--total-steps", 10**9)
    learner += ("--run-dir", tmp_path / "run", "--stop-return", 123.5, "--seed", 7)
    actor = ("actor", *SLOW[:2], "--learner-address", address, "--envs-per-actor", 2, "--actor-id")
    with running(*learner) as process, running(*actor, "stays"), contextlib.ExitStack() as stack:
        with running(*actor, "dies") as killed:
            client = stack.enter_context(listening(address))
            seen = Watched(client.watch_history(0.2))
            seen.until(lambda: ActingState.ACTING in seen.states("stays") & seen.states("dies"), "both actors act")
            assert seen.first is not None
            run = seen.first.run
            assert run is not None
            assert (run.env_id, run.algorithm, run.run_dir) == (SLOW[1], "impala", str(tmp_path / "run"))
            assert (run.seed, run.stop_return) == (7, 123.5)
            assert time.time() - 600 < run.started_unix_s < time.time()

            def of_stays() -> ActorInfo:
                return next(info for info in seen.last.actors if info.actor_id == "stays")

            seen.until(lambda: of_stays().applied_policy_version > 0, "an actor says with what it acts")
            seen.until(lambda: of_stays().env_steps_per_second > 0, "it has steps")
            assert of_stays().acting_state is not None
            seen.until(
                lambda: seen.last.delays.publish_lag_p50_s is not None and sum(seen.last.delays.trajectories_by_lag),
                "trajectories of actors that have said so",
            )
            delays = seen.last.delays
            assert 0 < delays.data_age_p50_s <= delays.data_age_p99_s
            assert 0 <= delays.publish_lag_p50_s <= delays.publish_lag_p99_s

            with LearnerClient(address) as operator:
                path, _ = operator.save_checkpoint()
                seen.until(lambda: seen.said("", path), "the checkpoint")
                operator.pause()
                paused, credit = LearnerActivity.PAUSED.value - 1, ActingState.WAITING_FOR_CREDIT.value - 1
                seen.until(lambda: any(row[paused] > 200 for row in seen.rows[""].values()), "the pause in the lane")
                seen.until(lambda: any(row[credit] > 200 for row in seen.rows["stays"].values()), "the actor's wait")
                operator.resume()
            seen.until(lambda: seen.said("", "an operator has resumed"), "the end of the pause")

            killed.send_signal(signal.SIGKILL)
            seen.until(lambda: seen.said("dies", "lost its connection"), "the loss")
            gone_since = seen.last.now_s
            seen.until(lambda: max(seen.rows["dies"]) > gone_since + 1, "the time after the loss")
            assert seen.rows["dies"][max(seen.rows["dies"])] == [0] * len(ActingState)
            seen.until(lambda: any(seen.rows["stays"][max(seen.rows["stays"])]), "the other one to act on")
        with running(*actor, "dies"):
            seen.until(lambda: seen.said("dies", "joined again, as process 2"), "the return")
            back_since = seen.last.now_s
            seen.until(
                lambda: any(any(row) for end, row in seen.rows["dies"].items() if end > back_since), "its lane again"
            )
            with LearnerClient(address) as late:
                everything = Watched(late.watch_history(0.2))
                everything.take(next(everything.updates))
            for name in ("", "stays", "dies"):
                shared = seen.rows[name].keys() & everything.rows[name].keys()
                assert len(shared) > 5
                assert {end: seen.rows[name][end] for end in shared} == {
                    end: everything.rows[name][end] for end in shared
                }, "who comes later sees the same"
            assert everything.events[: len(seen.events)] == seen.events
            with LearnerClient(address) as operator:
                operator.stop()
            with pytest.raises((NotReadyError, LearnerUnreachableError)):
                seen.until(lambda: False, "the end")
            assert seen.said("", "training has ended: it was stopped, after")
            assert ended(process) == 0
    assert not [event for event in seen.events if event.severity is EventSeverity.ERROR]
    rates = [point.env_steps_per_second for point in everything.last.points if point.interval_s == 1]
    assert max(rates) > 0


def test_a_learner_that_is_started_again_begins_a_new_history(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", *SLOW, "--address", address, "--total-steps", 10**9, "--run-dir", tmp_path / "run")
    learner += ("--resume", "auto", "--checkpoint-interval-s", 1)
    with running("actor", *SLOW[:2], "--learner-address", address, "--envs-per-actor", 2, "--actor-id", "a"):
        with running(*learner) as killed, listening(address) as client:
            before = Watched(client.watch_history(0.2))
            before.until(lambda: before.said("", "wrote the checkpoint"), "a checkpoint")
            before.until(lambda: before.states("a"), "the actor's lane")
            killed.send_signal(signal.SIGKILL)
            with pytest.raises(LearnerUnreachableError):
                before.until(lambda: False, "the end")
        with running(*learner), listening(address) as client:
            after = Watched(client.watch_history(0.2))
            after.until(lambda: ActingState.ACTING in after.states("a"), "the actor's lane again")
            assert after.first.run.started_unix_s > before.first.run.started_unix_s
            assert after.first.now_s < before.first.now_s + DEADLINE_S
            assert after.said("a", "joined"), "the same process, new to this learner"
            assert after.last.status.env_steps > 0
            points = [point for point in after.first.points if point.interval_s == 1]
            assert all(point.env_steps_per_second < 1e6 for point in points), "the checkpoint's steps are no progress"
            client.stop()
