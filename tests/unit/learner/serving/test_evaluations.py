"""Evaluators and the policies they are given: one at a time, the newest that is due, each counted once."""

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.serving.evaluations import EvaluatedPolicy, Evaluations
from rollcast.services.errors import (
    ActorReplacedError,
    InvalidInputError,
    LimitExceededError,
    NotReadyError,
    UnknownActorError,
)
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan, EvaluationReport, PlayedEpisodes
from rollcast.services.joining.join import ActorRole
from rollcast.services.limits.counts import MAX_COUNT
from rollcast.services.limits.limits import MAX_EVALUATORS
from rollcast.services.policies.codec import encode_policy
from tests.unit.learner.serving.intakes import offer

NONCE = 77
PLAN = EvaluationPlan(n_episodes=2, seed=5)


def evaluations(plan: EvaluationPlan = PLAN, **options: Any) -> Evaluations:
    made = Evaluations(plan, **options)
    made.begin(NONCE)
    return made


def due(desk: Evaluations, *versions: int) -> None:
    for version in versions:
        state = {"w": np.full(1, version, np.float32)}
        desk.offer(
            EvaluatedPolicy(version=version, env_steps=100 * version, state=state), encode_policy(version, state)
        )


def join(desk: Evaluations, name: str = "e", nonce: int = 1, **changes: int) -> int:
    joined, incarnation = desk.join(offer(actor_id=name, process_nonce=nonce, role=ActorRole.EVALUATE, **changes))
    assert joined == name
    return incarnation


class Subscribed:
    """An evaluator with an open subscription."""

    def __init__(self, desk: Evaluations, name: str = "e", incarnation: int = 1, holds_version: int = 0) -> None:
        self._open = contextlib.ExitStack()
        self._wait = self._open.enter_context(desk.subscription(name, incarnation, holds_version=holds_version))

    def version(self) -> int | None:
        """The version that it is given now; None if it is given none."""
        encoded = self._wait(0.0)
        return None if encoded is None else encoded.version

    def close(self) -> None:
        self._open.close()


def report(version: int, *returns: float, name: str = "e", incarnation: int = 1, nonce: int = NONCE, **more: Any):
    returns = returns or (1.0, 3.0)
    lengths = tuple(range(1, len(returns) + 1))
    played = PlayedEpisodes(policy_version=version, returns=returns, lengths=lengths, seconds=0.5, **more)
    return EvaluationReport(actor_id=name, incarnation=incarnation, learner_nonce=nonce, outcome=played)


def playing_version_1(**options: Any) -> tuple[Evaluations, Subscribed]:
    """An evaluator that was given version 1."""
    desk = evaluations(**options)
    join(desk)
    evaluator = Subscribed(desk)
    due(desk, 1)
    assert evaluator.version() == 1
    return desk, evaluator


def versions_taken(desk: Evaluations) -> list[int]:
    return [result.policy.version for result in desk.take()]


def test_evaluator_gets_the_next_policy_once_it_has_reported_and_skips_to_the_newest():
    desk = evaluations()
    join(desk)
    evaluator = Subscribed(desk)
    assert evaluator.version() is None, "none is due"
    with pytest.raises(
        InvalidInputError, match="version 9 of the policy; expected no report, because it has no policy"
    ):
        desk.report(report(9))
    due(desk, 3)
    assert evaluator.version() == 3
    due(desk, *range(4, 14))
    assert evaluator.version() is None, "it still plays with version 3"
    desk.report(report(3))
    assert evaluator.version() == 13, "ten versions behind: it goes on with the newest"
    (result,) = desk.take()
    assert (result.policy.version, result.policy.env_steps, result.policy.state["w"]) == (3, 300, 3.0)
    assert (result.evaluation.mean, result.seconds) == (2.0, 0.5)
    assert desk.info().skipped == 9
    assert desk.take() == []
    due(desk, 14)
    desk.report(report(13))
    desk.end()
    assert evaluator.version() is None, "nothing is given after the end"


def test_each_policy_goes_to_one_of_several_evaluators():
    desk = evaluations()
    join(desk, "a")
    join(desk, "b")
    first, second = Subscribed(desk, "a"), Subscribed(desk, "b")
    due(desk, 1)
    assert (first.version(), second.version()) == (1, None)
    due(desk, 2)
    assert (first.version(), second.version()) == (None, 2)
    desk.report(report(2, name="b"))
    desk.report(report(1, name="a"))
    assert versions_taken(desk) == [2, 1]


def test_report_counts_once_however_often_it_comes():
    desk, _ = playing_version_1()
    desk.report(report(1))
    desk.report(report(1))
    assert versions_taken(desk) == [1]
    desk.report(report(1))
    assert versions_taken(desk) == []


@pytest.mark.parametrize("reports", ["before it comes back", "afterwards"])
def test_evaluator_that_comes_back_with_its_policy_goes_on_with_it(reports: str):
    desk, evaluator = playing_version_1()
    evaluator.close()
    if reports == "before it comes back":
        desk.report(report(1))
    assert join(desk) == 1, "the same process"
    again = Subscribed(desk, holds_version=1)
    due(desk, 2)
    if reports == "afterwards":
        assert again.version() is None
        desk.report(report(1))
    assert (versions_taken(desk), again.version()) == ([1], 2)


@pytest.mark.parametrize(("newer", "given"), [((), 1), ((2,), 2)])
def test_policy_of_a_process_that_ended_is_due_again_unless_a_newer_one_is(newer: tuple[int, ...], given: int):
    desk, evaluator = playing_version_1()
    due(desk, *newer)
    evaluator.close()
    assert join(desk, nonce=2) == 2
    restarted = Subscribed(desk, incarnation=2)
    assert restarted.version() == given
    assert desk.info().skipped == len(newer)


def test_of_two_policies_that_were_lost_the_newer_is_due_again():
    desk = evaluations()
    for version, name in ((1, "a"), (2, "b")):
        join(desk, name)
        due(desk, version)
        assert Subscribed(desk, name).version() == version
    first, _ = Subscribed(desk, "a"), Subscribed(desk, "b")
    assert first.version() == 2
    assert desk.info().skipped == 1


def test_process_that_was_replaced_is_refused():
    desk = evaluations()
    join(desk)
    old = Subscribed(desk)
    join(desk, nonce=2)
    for call in (old.version, lambda: desk.report(report(1)), lambda: Subscribed(desk)):
        with pytest.raises(ActorReplacedError, match="'e', incarnation 1, was replaced by incarnation 2: give each"):
            call()


def test_process_that_was_replaced_does_not_take_its_name_back():
    desk = evaluations()
    assert (join(desk, nonce=1), join(desk, nonce=2)) == (1, 2)
    with pytest.raises(ActorReplacedError, match="another process has joined as evaluator 'e' since this process did"):
        join(desk, nonce=1, incarnation=1)
    assert join(desk, nonce=2, incarnation=2) == 2, "the newer one is left in peace"

    restarted = evaluations()
    assert join(restarted, nonce=1, incarnation=1) == 1
    assert join(restarted, nonce=3, incarnation=3) == 3, "it goes on with its own count"


def test_newer_subscription_replaces_the_one_before():
    desk = evaluations()
    join(desk)
    old, new = Subscribed(desk), Subscribed(desk)
    due(desk, 1)
    with pytest.raises(NotReadyError, match="'e' has opened another subscription"):
        old.version()
    old.close()
    assert new.version() == 1
    assert desk.info().n_alive == 1


def test_rejects_evaluators_that_have_not_joined():
    desk = evaluations()
    for call in (lambda: desk.report(report(1)), lambda: Subscribed(desk)):
        with pytest.raises(UnknownActorError, match="evaluator 'e', incarnation 1, has not joined this learner"):
            call()


def test_rejects_reports_for_another_learner():
    desk = evaluations()
    join(desk)
    with pytest.raises(UnknownActorError, match="a policy of learner 0x4e; expected one of learner 0x4d"):
        desk.report(report(1, nonce=NONCE + 1))


@pytest.mark.parametrize(
    ("version", "returns", "message"),
    [
        (2, (1.0, 1.0), "version 2 of the policy; expected version 1"),
        (1, (1.0, 2.0, 3.0), "has played 3 episodes with version 1; expected at most 2, as agreed at Join"),
        (1, (1e308, 1e308), "returns from 1e\\+308 to 1e\\+308, whose mean or standard deviation is not finite"),
    ],
)
def test_rejects_reports_that_do_not_fit(version: int, returns: tuple[float, ...], message: str):
    desk, _ = playing_version_1()
    with pytest.raises(InvalidInputError, match=message):
        desk.report(report(version, *returns))
    assert desk.take() == []
    desk.report(report(1))
    assert versions_taken(desk) == [1], "nothing has changed"


def test_report_has_the_episodes_of_both_kinds_of_actions_and_the_better_ones_count():
    desk, _ = playing_version_1(plan=dataclasses.replace(PLAN, actions=EvaluationActions.BOTH))
    with pytest.raises(InvalidInputError, match="with actions of kind LIKELIEST; expected BOTH, as agreed at Join"):
        desk.report(report(1))
    with pytest.raises(
        InvalidInputError,
        match="played 2 episodes with version 1; expected at most 2 for each of 2 kinds of actions",
    ):
        desk.report(report(1, 0.0, 0.0, actions=EvaluationActions.BOTH))
    desk.report(report(1, 0.0, 2.0, 5.0, 7.0, actions=EvaluationActions.BOTH, counts=(2, 2)))
    (result,) = desk.take()
    assert {kind.option: (one.mean, one.lengths) for kind, one in result.played.items()} == {
        "likeliest": (1.0, (1, 2)),
        "drawn": (6.0, (3, 4)),
    }
    assert result.evaluation.mean == 6.0


def test_report_has_the_games_against_each_opponent():
    desk = evaluations(dataclasses.replace(PLAN, opponents=True))
    join(desk)
    evaluator = Subscribed(desk)
    state = {"w": np.zeros(1, np.float32)}
    desk.offer(EvaluatedPolicy(version=8, env_steps=80, state=state, opponents=(2, 5)), encode_policy(8, state))
    assert evaluator.version() == 8
    expected = "expected at most 2 for each of 3 opponents, random play among them, as agreed at Join"
    for counts in ((), (2, 4), (1, 3, 2)):
        with pytest.raises(InvalidInputError, match=expected):
            desk.report(report(8, *[1.0] * 6, counts=counts))
    desk.report(report(8, 1.0, 1.0, 0.0, -1.0, -3.0, counts=(2, 1, 2)))
    (result,) = desk.take()
    assert {version: games.returns for version, games in result.against.items()} == {
        0: (1.0, 1.0),
        2: (0.0,),
        5: (-1.0, -3.0),
    }
    assert result.evaluation.mean == pytest.approx(-0.4)


def test_fewer_episodes_count_and_a_policy_without_any_is_skipped():
    memory = RunHistory()
    desk, evaluator = playing_version_1(note=memory.note)
    desk.report(report(1, 7.0))
    assert [result.evaluation.returns for result in desk.take()] == [(7.0,)]
    due(desk, 2)
    assert evaluator.version() == 2
    nothing = PlayedEpisodes(policy_version=2, returns=(), lengths=(), seconds=0.5)
    for _ in range(2):  # a report may come twice
        desk.report(EvaluationReport(actor_id="e", incarnation=1, learner_nonce=NONCE, outcome=nothing))
    assert desk.take() == []
    assert desk.info().skipped == 1
    assert desk.info().last_error == "no episode has ended with version 2: the environment raised in each"
    assert [event.text for event in memory.news(None).events] == [desk.info().last_error]
    due(desk, 3)
    assert evaluator.version() == 3, "it is not given the same one again"
    desk.report(report(3))
    assert desk.info().last_error == ""


def test_failure_is_shown_until_the_next_report_and_its_policy_is_due_again():
    memory = RunHistory()
    desk, evaluator = playing_version_1(note=memory.note)
    failure = ActorFailure(exception_type="ValueError", message="no licence", traceback="Traceback ...")
    desk.report(EvaluationReport(actor_id="e", incarnation=1, learner_nonce=NONCE, outcome=failure))
    assert desk.info().last_error == "ValueError: no licence"
    (event,) = memory.news(None).events
    assert (event.who, event.text) == ("e", "the evaluation has failed: ValueError: no licence")
    assert (event.severity, event.detail) == (EventSeverity.ERROR, "Traceback ...")
    assert evaluator.version() == 1
    desk.report(report(1))
    assert desk.info().last_error == ""


def test_a_traceback_that_comes_again_is_told_once(caplog: pytest.LogCaptureFixture):
    desk, _ = playing_version_1()
    failure = ActorFailure(exception_type="ValueError", message="no licence", traceback="Traceback ...")
    for _ in range(3):
        desk.report(EvaluationReport(actor_id="e", incarnation=1, learner_nonce=NONCE, outcome=failure))
    other = ActorFailure(exception_type="ValueError", message="no display", traceback="Traceback ... elsewhere")
    desk.note_exit("e", "exit code 1", other)
    assert [message for message in caplog.messages if " failed:" in message] == [
        "evaluator e failed:\nTraceback ...",
        *["evaluator e failed: ValueError, with the same traceback as before"] * 2,
        "evaluator e failed:\nTraceback ... elsewhere",
    ]


def test_too_many_evaluators_are_refused_until_one_has_gone():
    desk = evaluations(join_lease_s=0.0)
    open_ones = []
    for number in range(MAX_EVALUATORS):
        join(desk, f"e{number}")
        open_ones.append(Subscribed(desk, f"e{number}"))
    with pytest.raises(LimitExceededError, match=r"4 evaluators have joined; expected at most 4") as refused:
        join(desk, "late")
    assert refused.value.limit == "max_evaluators"
    due(desk, 1)
    assert open_ones[0].version() == 1
    open_ones[0].close()
    join(desk, "late")
    late = Subscribed(desk, "late")
    assert late.version() == 1, "what the forgotten one had is due again"
    assert desk.info().n_alive == MAX_EVALUATORS


def test_policies_are_pending_while_a_connected_evaluator_has_them_or_is_about_to():
    desk = evaluations()
    due(desk, 1)
    assert desk.info().n_pending == 0, "nobody is there"
    assert desk.info(n_local=1).n_pending == 1, "a process of this machine is about to join"
    join(desk)
    evaluator = Subscribed(desk)
    assert desk.info().n_pending == 1
    evaluator.version()
    due(desk, 2)
    assert desk.info().n_pending == 2
    desk.report(report(1))
    assert desk.info().n_pending == 1
    evaluator.close()
    assert desk.info().n_pending == 0


def test_unnamed_evaluators_get_names():
    desk = evaluations()
    named = [desk.join(offer(actor_id="", process_nonce=nonce, role=ActorRole.EVALUATE))[0] for nonce in range(2)]
    assert named == ["evaluator-0", "evaluator-1"]


def test_a_wait_ends_when_the_evaluators_call_ends():
    desk, ends = evaluations(), []
    join(desk)
    with desk.subscription("e", 1, holds_version=0, on_end=ends.append) as wait:
        ends[0]()
        due(desk, 1)
        assert wait(600.0) is None, "nobody reads the version"


def test_a_name_that_has_counted_as_far_as_possible_stays_usable():
    desk = evaluations()
    assert join(desk, nonce=1, incarnation=MAX_COUNT) == MAX_COUNT
    assert join(desk, nonce=2) == MAX_COUNT
