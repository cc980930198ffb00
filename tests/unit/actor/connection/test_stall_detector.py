"""An actor and a learner that says nothing."""

from types import SimpleNamespace

import pytest

from rollcast.actor.connection import stall_detector as silence
from rollcast.actor.connection.stall_detector import StallDetector
from rollcast.services.joining.join import JoinAgreement
from rollcast.services.policies.policies import PolicySpec
from tests.clocks import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=clock))
    return clock


def answer(**changes: object) -> JoinAgreement:
    agreed = {
        **{"actor_id": "a", "slot": 0, "incarnation": 1, "acknowledged_sequence": 4, "n_rollout_steps": 5},
        **{"env_seed": 1, "agent_seed": 2, "policy": PolicySpec(), "max_message_bytes": 1 << 20},
    }
    return JoinAgreement(**(agreed | changes))


def find_loss(asked: StallDetector, told: JoinAgreement, **changes: object) -> str:
    known = {"is_open": True, "acknowledged": 4, "has_sent": True, "policy_version": 7}
    return asked.find_loss(told, **(known | changes))


def test_asks_the_learner_once_in_15_s_of_silence(clock: Clock):
    silent = StallDetector()
    asked = []
    for second in range(50):
        clock.now = 100.0 + second
        if silent.is_to_be_asked():
            asked.append(second)
    assert asked == [15, 30, 45]
    silent.broken()
    clock.now += 14.9
    assert not silent.is_to_be_asked()


def test_a_learner_that_never_answers_in_time_is_given_up_the_third_time(clock: Clock):
    silent = StallDetector()
    assert [silent.is_in_vain() for _ in range(6)] == [False, False, True, False, False, True]
    silent.is_in_vain()
    silent.broken()
    assert not silent.is_in_vain(), "it has answered since"
    assert not silent.is_in_vain()


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (answer(awaiting_s=14.9), {}),  # it has had something meanwhile
        (answer(awaiting_s=0.0), {}),  # it has a rollout in hand, and no room for it
        (answer(awaiting_s=0.0, acknowledged_sequence=5), {}),  # it holds the answer back until there are places
        (answer(awaiting_s=99.0), {"has_sent": False}),
        (answer(policy_version=8), {}),  # that may still be on its way
    ],
)
def test_finds_no_loss_if_the_learner_is_busy(told: JoinAgreement, known: dict[str, object], clock: Clock):
    assert find_loss(StallDetector(), told, **known) == ""


def test_names_the_lost_message(clock: Clock):
    assert (
        find_loss(StallDetector(), answer(awaiting_s=15.2)) == "rollout 5, for which the learner has waited for 15 s,"
    )
    assert (
        find_loss(StallDetector(), answer(acknowledged_sequence=6, awaiting_s=1.0))
        == "the acknowledgement of rollout 6"
    )
    assert find_loss(StallDetector(), answer(), is_open=False) == "the first answer on the rollout stream"


def test_finds_a_lost_policy_that_the_last_answer_announced(clock: Clock):
    silent = StallDetector()
    assert find_loss(silent, answer(policy_version=8)) == ""
    assert find_loss(silent, answer(policy_version=9), policy_version=8) == ""
    assert find_loss(silent, answer(policy_version=9), policy_version=8) == "version 9 of the policy"
    silent.opened()
    assert find_loss(silent, answer(policy_version=2), policy_version=1) == "", "another learner counts anew"


def test_allows_twice_the_silence_after_each_loss(clock: Clock):
    silent = StallDetector()
    assert find_loss(silent, answer(awaiting_s=15.0))
    assert not find_loss(silent, answer(awaiting_s=29.0))
    assert find_loss(silent, answer(awaiting_s=30.0))
    silent.opened()
    clock.now += 59.0
    assert not silent.is_to_be_asked()
    silent.progressed()
    silent.broken()
    clock.now += 15.0
    assert silent.is_to_be_asked()
    assert find_loss(silent, answer(awaiting_s=15.0))
