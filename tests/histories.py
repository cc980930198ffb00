"""Made-up histories: updates of a run as a learner sends them, and a server that sends them."""

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollcast.services.errors import RollcastError
from rollcast.services.history.history import (
    EvaluationPoint,
    EventSeverity,
    HistoryEvent,
    HistoryPoint,
    HistoryUpdate,
    Lane,
    LearnerActivity,
    MetricCurve,
    PolicyDelays,
    RunFacts,
)
from rollcast.services.joining.activity import ActingState
from rollcast.services.replay.replay import ReplayStatus
from rollcast.services.server.server import make_server
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from rollcast.tools.watching.run_view import RunView
from tests.integration.learner_fakes import FakeControl, FakeSink, FakeSource

STARTED_UNIX_S = 1_700_000_000.0
RUN = RunFacts(
    env_id="LunarLander-v3",
    algorithm="ppo",
    run_dir="runs/lander-3",
    seed=3,
    stop_return=200.0,
    started_unix_s=STARTED_UNIX_S,
    software_version="0.1",
    settings="algorithm: ppo\nppo:\n  discount: 0.99\n",
)


def status(**changes: Any) -> LearnerStatus:
    values: dict[str, Any] = {
        "phase": Phase.TRAINING,
        "env_steps": 18_200_000,
        "seconds": 60.0,
        "env_steps_per_second": 41_200.0,
        "updates": 812,
        "policy_version": 812,
        "queue_size": 48,
        "queue_capacity": 64,
        "mean_return": 187.3,
        "algorithm": "ppo",
    }
    return LearnerStatus(**(values | changes))


def replay_status(**changes: Any) -> ReplayStatus:
    """A buffer without a limit of samples for each insertion, for which nobody waits."""
    values: dict[str, Any] = {
        "size": 250,
        "capacity": 1000,
        "n_bytes": 8000,
        "inserted": 250,
        "sampled": 0,
        "min_size": 1,
        "difference": 0.0,
        "min_diff": -math.inf,
        "max_diff": math.inf,
        "waiting": (),
    }
    return ReplayStatus(**(values | changes))


def actor(actor_id: str, slot: int = 0, **changes: Any) -> ActorInfo:
    values: dict[str, Any] = {
        "actor_id": actor_id,
        "slot": slot,
        "incarnation": 1,
        "state": ActorState.STREAMING,
        "acting_state": ActingState.ACTING,
        "env_steps": 2_000_000,
        "applied_policy_version": 812,
        "env_steps_per_second": 5100.0,
    }
    return ActorInfo(**(values | changes))


def points(n: int, *, interval_s: float = 1.0, end_s: float | None = None, **changes: Any) -> tuple[HistoryPoint, ...]:
    """Returns `n` points, one after the other, the last one at `end_s` (by default the first begins at 0)."""
    end_s = n * interval_s if end_s is None else end_s
    return tuple(
        HistoryPoint(
            time_s=(time_s := end_s - (n - 1 - i) * interval_s),
            interval_s=interval_s,
            env_steps=int(100 * time_s),
            **({"env_steps_per_second": 100.0} | changes),
        )
        for i in range(n)
    )


def lane(
    actor_id: str,
    states: Sequence[ActingState | LearnerActivity | None],
    *,
    end_s: float | None = None,
    interval_s: float = 1.0,
) -> Lane:
    """Returns a lane whose intervals were each spent in one state; None: it is not known."""
    shares = np.zeros((len(states), len(ActingState if actor_id else LearnerActivity)), np.uint8)
    for row, state in enumerate(states):
        if state is not None:
            shares[row, state.value - 1] = 255
    end_s = len(states) * interval_s if end_s is None else end_s
    return Lane(actor_id=actor_id, interval_s=interval_s, end_s=end_s, shares=shares)


def curve(metric: str, *values: float) -> MetricCurve:
    """Returns a curve with a value a second from 1 s on, each 100 steps after the one before."""
    seconds = range(1, len(values) + 1)
    return MetricCurve(
        metric=metric, time_s=tuple(map(float, seconds)), env_steps=tuple(100 * s for s in seconds), values=values
    )


def update(now_s: float, *, run: RunFacts | None = None, **changes: Any) -> HistoryUpdate:
    return HistoryUpdate(now_s=now_s, run=run, **({"status": status(seconds=now_s)} | changes))


def busy_run(n_actors: int = 3, *, seconds: int = 60) -> HistoryUpdate:
    """Returns the first update of a run in which actors act, one is silent, one is lost, and the trainer waits."""
    acts, sends, waits = ActingState.ACTING, ActingState.SENDING, ActingState.WAITING_FOR_CREDIT
    actors = [actor("left-arm", 0, idle_s=14.0, incarnation=3, env_steps_per_second=0.0, applied_policy_version=790)]
    lanes = [
        lane("", [LearnerActivity.UPDATING, LearnerActivity.WAITING, LearnerActivity.PUBLISHING] * (seconds // 3)),
        lane("left-arm", [acts] * (seconds - 14) + [None] * 14),
    ]
    for slot in range(1, n_actors):
        if slot == 2:
            actors.append(actor("node-2", 2, state=ActorState.LOST, idle_s=30.0, last_error="Connection reset by peer"))
            lanes.append(lane("node-2", [acts] * (seconds - 30), end_s=seconds - 30.0))
        else:
            actors.append(actor(f"node-{slot}", slot, idle_s=0.1))
            lanes.append(lane(f"node-{slot}", ([acts] * 4 + [sends, waits]) * (seconds // 6)))
    return update(
        float(seconds),
        run=RUN,
        actors=tuple(actors),
        lanes=tuple(lanes),
        points=points(seconds, waiting_fraction=0.38, env_steps_per_second=41_200.0, actors_alive=n_actors),
        evaluations=(
            EvaluationPoint(
                time_s=50.0,
                env_steps=5000,
                policy_version=790,
                mean_return=214.3,
                ci_low=200.0,
                ci_high=228.6,
                best=True,
            ),
        ),
        events=(
            HistoryEvent(time_s=31.0, severity=EventSeverity.INFO, who="", text="checkpoint 00000790 kept"),
            HistoryEvent(
                time_s=40.0,
                severity=EventSeverity.WARNING,
                who="left-arm",
                text="lost its connection",
                detail="why\nso",
            ),
        ),
        delays=PolicyDelays(
            trajectories_by_lag=(600, 300, 100),
            max_policy_lag=4,
            data_age_p50_s=0.4,
            data_age_p99_s=1.5,
            publish_lag_p50_s=0.012,
            publish_lag_p99_s=0.08,
        ),
        curves=(curve("ppo/policy_loss", 0.5, 0.25),),
    )


def relayed_run(n_behind: int = 4) -> HistoryUpdate:
    """Returns the first update of a run whose actors come through four relays, but for one actor.

    Behind each relay of the learner are `n_behind` actors: those of rack-1 act, those of rack-2 are lost; site-a passes
    on those of rack-3, whose first one is silent.
    """
    seconds = 60
    actors = [actor("alone", 0, idle_s=0.1)]
    lanes = [lane("", [LearnerActivity.UPDATING, LearnerActivity.WAITING] * (seconds // 2))]
    for via in (("rack-1",), ("rack-2",), ("rack-3", "site-a")):
        for number in range(n_behind):
            changes: dict[str, Any] = {"idle_s": 0.1}
            n_known = seconds
            if via == ("rack-2",):
                changes = {"state": ActorState.LOST, "idle_s": 30.0, "last_error": "the stream has ended"}
                n_known = seconds - 30
            elif via == ("rack-3", "site-a") and number == 0:
                changes = {"idle_s": 14.0}
                n_known = seconds - 14
            actors.append(actor(f"{via[0]}-{number}", len(actors), via=via, **changes))
            lanes.append(lane(actors[-1].actor_id, [ActingState.ACTING] * n_known + [None] * (seconds - n_known)))
    rates = points(seconds, waiting_fraction=0.38, env_steps_per_second=41_200.0, actors_alive=len(actors))
    return update(float(seconds), run=RUN, actors=tuple(actors), lanes=tuple(lanes), points=rates)


def view_of(*updates: HistoryUpdate) -> RunView:
    """A view that has heard these."""
    view = RunView()
    for one in updates:
        view.apply(one)
    return view


class ServedHistory(NamedTuple):
    history: "FakeHistory"
    control: FakeControl
    address: str


class FakeHistory:
    """A learner's memory that tests fill. `changed` guards it."""

    def __init__(self, first: HistoryUpdate) -> None:
        self.changed = threading.Condition()
        self.first = first
        self.next: HistoryUpdate | None = None
        self.error: RollcastError | None = None
        self.asked = 0

    def history(self, after_s: float | None) -> HistoryUpdate:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
            if self.error is not None:
                raise self.error
            if after_s is None:
                return self.first
            return self.next or update(after_s, status=self.first.status, actors=self.first.actors)

    @property
    def is_over(self) -> bool:
        with self.changed:
            return (self.next or self.first).status.phase is Phase.FINISHED

    def set_next(self, following: HistoryUpdate) -> None:
        with self.changed:
            self.next = following


@contextlib.contextmanager
def serve_history(first: HistoryUpdate, address: str = "127.0.0.1:0", **options: Any) -> Iterator[ServedHistory]:
    """Serves a history, beside the other services of a learner."""
    history = FakeHistory(first)
    with _serving(address, history=history, **options) as (control, at):
        yield ServedHistory(history, control, at)


@contextlib.contextmanager
def serve_without_history() -> Iterator[ServedHistory]:
    """Serves as a learner does that is older than `WatchHistory`."""
    with _serving("127.0.0.1:0", history=None) as (control, at):
        yield ServedHistory(FakeHistory(update(0.0)), control, at)


@contextlib.contextmanager
def _serving(address: str, **options: Any) -> Iterator[tuple[FakeControl, str]]:
    control = FakeControl()
    server = make_server(address, sink=FakeSink(), source=FakeSource(), control=control, **options)
    server.start()
    try:
        yield control, server.address
    finally:
        server.stop(0.0)
