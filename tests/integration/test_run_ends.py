"""Every way that a run can end, in every role: all places that tell of the run agree on the last step."""

import dataclasses
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, get_args

import pytest

from rollcast.learner.checkpoints.listing import describe_run
from rollcast.learner.training.summary import EndReason
from rollcast.services.client.client import LearnerClient
from rollcast.services.process.stop_signals import stop_signals
from rollcast.services.status.status import Phase
from tests.ending_algorithms import ENDLESS as ENDLESS_UPDATE
from tests.ending_algorithms import STUCK
from tests.run_ends import Moment, Role, Run, started

pytestmark = pytest.mark.slow

ROLES: Final = frozenset(get_args(Role))
SERVED: Final = ROLES - {"sequential"}
ENDLESS: Final = {"--total-steps": 10**9, "--stop-return": 1e9}
EVALUATED: Final = {"--eval-interval-steps": 300, "--eval-episodes": 2}
OF_THE_END: Final = frozenset({"summary", "printed"})
SAVED: Final = frozenset({"checkpoint", "policy"})


def signals(number: signal.Signals) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.wait_for_records()
        run.signal(number)

    return act


def signals_in_an_update(number: signal.Signals) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.wait_for_words(ENDLESS_UPDATE)
        run.signal(number)

    return act


def stops_by_rpc(run: Run) -> None:
    run.wait_for_records()
    with LearnerClient(run.addresses[0]) as client:
        client.stop()


def interrupts_twice(run: Run) -> None:
    run.wait_for_words(STUCK)
    run.signal(signal.SIGINT)
    # Two signals at once are one: a second comes when the first has been handled, which nothing shows.
    for _ in range(60):
        threading.Event().wait(1.0)
        if all(learner.poll() is not None for learner in run.learners):
            return
        run.signal(signal.SIGINT)


def fills_the_disk(run: Run) -> None:
    run.wait_for_records()
    run.disk.fill()
    run.wait_for_words("the metrics after")
    run.signal(signal.SIGTERM)


def kills_rank_1(run: Run) -> None:
    run.wait_for_records()
    run.learners[1].kill()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """A way that a run ends.

    Attributes:
        reason: What training says of it; None: it is not asked.
        arguments: The options that lead to it.
        act: Brings it about.
        codes: The exit codes of the learners; of one, if they are the same.
        silent: The places that tell nothing.
        behind: The places that tell of an earlier moment.
        roles: Those that can end so.
        chosen: Those of them that `make test` has; `make walks` has all.
    """

    reason: EndReason | None
    arguments: Mapping[str, object] = dataclasses.field(default_factory=lambda: ENDLESS)
    act: Callable[[Run], None] = lambda run: None
    codes: tuple[int, ...] = (0,)
    silent: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    roles: frozenset[Role] = ROLES
    chosen: frozenset[Role] = frozenset()


NAN: Final = ENDLESS | {"--algorithm": "tests.ending_algorithms:DivergingImpala"}
LONG: Final = ENDLESS | {"--algorithm": "tests.ending_algorithms:EndlessPpo"}
HANGING: Final = ENDLESS | {"--algorithm": "tests.ending_algorithms:StuckImpala"}
RAISING: Final = ENDLESS | {"--env-id": "tests.environments:FailingEnv", "--env-kwargs": '{"fail_at": 200}'}

WAYS: Final = {
    "solved": Way(reason=EndReason.SOLVED, arguments={"--stop-return": 1}, chosen={"ranks"}),
    "limit": Way(reason=EndReason.STEPS, arguments=ENDLESS | {"--total-steps": 2000}, chosen={"serving"}),
    "evaluation": Way(reason=EndReason.SOLVED, arguments=EVALUATED | {"--stop-return": 1}, chosen={"train"}),
    "patience": Way(
        reason=EndReason.PATIENCE, arguments=ENDLESS | EVALUATED | {"--eval-patience": 1}, chosen={"learner"}
    ),
    "Ctrl-C": Way(reason=EndReason.STOPPED, act=signals(signal.SIGINT), codes=(130,), chosen={"sequential"}),
    "Ctrl-C twice": Way(
        reason=None, arguments=HANGING, act=interrupts_twice, codes=(130,), silent=SAVED | OF_THE_END,
        # it ends at once: no watcher is told
        behind=frozenset({"history", "history of rank 1"}), chosen={"train"},
    ),
    "Ctrl-C in an update": Way(
        reason=EndReason.STOPPED, arguments=LONG, act=signals_in_an_update(signal.SIGINT), codes=(130,),
        # ranks end their updates together, when all is learnt
        roles=ROLES - {"ranks"}, chosen={"train"},
    ),
    "SIGTERM in an update": Way(
        reason=EndReason.STOPPED, arguments=LONG, act=signals_in_an_update(signal.SIGTERM),
        roles=ROLES - {"ranks"}, chosen={"learner"},
    ),
    "SIGTERM": Way(reason=EndReason.STOPPED, act=signals(signal.SIGTERM), chosen={"train"}),
    "SIGHUP": Way(reason=EndReason.STOPPED, act=signals(signal.SIGHUP), chosen={"train"}),
    "Stop": Way(reason=EndReason.STOPPED, act=stops_by_rpc, roles=SERVED, chosen={"learner"}),
    "divergence": Way(
        reason=EndReason.FAILED, arguments=NAN, codes=(1,), silent=SAVED | OF_THE_END, chosen={"learner"}
    ),
    "full disk": Way(
        reason=EndReason.STOPPED, act=fills_the_disk, codes=(1,), silent=SAVED | OF_THE_END,
        behind=frozenset({"records", "tensorboard", "ls"}), chosen={"train"},
    ),
    "failing actors": Way(
        reason=EndReason.FAILED, arguments=RAISING, codes=(1,), silent=OF_THE_END, chosen={"train", "ranks"}
    ),
    "lost rank": Way(
        reason=EndReason.FAILED, act=kills_rank_1, codes=(1, -9), silent=SAVED | OF_THE_END,
        behind=frozenset({"history of rank 1"}), roles=frozenset({"ranks"}), chosen={"ranks"},
    ),
}  # fmt: skip


def test_the_table_has_every_reason_and_every_signal():
    lacking = set(EndReason) - {way.reason for way in WAYS.values()}
    assert not lacking, f"WAYS has no row that ends so: {lacking}; add one"
    lacking = {number.name for number in stop_signals()} - WAYS.keys() - {"SIGINT"}
    assert not lacking, f"WAYS has no row for the signals {lacking}; add one"
    assert set().union(*(way.chosen for way in WAYS.values())) == ROLES


@pytest.mark.parametrize(
    ("name", "role"),
    [
        pytest.param(name, role, marks=[] if role in way.chosen else pytest.mark.whole)
        for name, way in WAYS.items()
        for role in sorted(way.roles)
    ],
)
def test_all_that_tell_of_a_run_agree_on_its_end(name: str, role: Role, tmp_path: Path):
    way = WAYS[name]
    with started(role, tmp_path, way.arguments) as run:
        if not run.disk.is_mounted:
            pytest.skip("no file system can be mounted here, which needs root")
        way.act(run)
        if role == "train" and run.children:
            assert len(run.children) >= 2
            assert run.files, "the socket's folder"
        is_served = role == "serving" and way.reason is not None and way.reason.is_final
        if is_served:
            run.wait_for_words("serving its last policy")
            with LearnerClient(run.addresses[0]) as client:
                client.stop()
        codes = run.exit_codes()
        assert min(codes) < 0 or run.temporary_files() == []
        run.disk.free()
        last, said = run.last(), "\n".join(run.said)
        assert codes == list(way.codes) * (len(codes) // len(way.codes)), said
        assert "Traceback" not in said or name == "failing actors", said
        telling = {place: moment for place, moment in last.items() if place not in way.silent | way.behind}
        end = telling["tracker"]
        assert end is not None
        assert end.updates
        assert telling == {place: agreeing(moment, end) for place, moment in telling.items()}, said
        assert {place: last[place] for place in way.silent} == dict.fromkeys(way.silent)
        for place in way.behind & last.keys():
            assert (last[place] or Moment(0)).env_steps <= end.env_steps, place
        assert run.folder.metrics_path.read_text().endswith("\n")
        is_final = way.reason is not None and way.reason.is_final
        state = "empty" if "checkpoint" in way.silent else "finished" if is_final else "stopped"
        assert (describe_run(run.folder).state, last["ls"]) == (state, Moment(last["records"].env_steps))
    if way.reason is None:
        return
    text = f"training has ended: {way.reason.words}, after {end.env_steps} environment steps and {end.updates} updates"
    for code, reasons, phase in zip(codes, run.reasons(), run.phases(), strict=bool(run.watchers)):
        if code >= 0:
            (told,) = reasons
            assert told.startswith("training has failed: ") if way.reason is EndReason.FAILED else told == text
            assert phase is (Phase.FINISHED if is_served else Phase.STOPPING)


def agreeing(moment: Moment | None, end: Moment) -> Moment:
    """The end, with as much as a place tells of a moment."""
    return end if moment is None or moment.updates is not None else Moment(end.env_steps)
