"""Whom an actor asks to join next, and when."""

import pytest

from rollcast.actor.connection.join_attempts import JoinAttempts
from rollcast.services.errors import (
    LearnerUnreachableError,
    LimitExceededError,
    NotReadyError,
    RollcastError,
    SpacesMismatchError,
    ThrottledError,
)

NOT_READY = NotReadyError("its learner starts again")


def begun(*addresses: str, timeout_s: float = 600.0, **options: object) -> JoinAttempts:
    attempts = JoinAttempts(addresses, **options)
    attempts.begin(100.0, timeout_s)
    return attempts


@pytest.mark.parametrize(
    "error", [LearnerUnreachableError("x"), ThrottledError("x"), LimitExceededError("x", limit="max_actors")]
)
def test_an_address_that_cannot_be_used_gives_way_to_the_next_at_once(error: RollcastError):
    attempts = begun("relay", "learner")
    assert (attempts.address, attempts.failed(error, 100.0), attempts.address) == ("relay", 0.0, "learner")
    assert attempts.failed(LearnerUnreachableError("x"), 100.0) > 0.0
    assert (attempts.address, attempts.n_rounds) == ("relay", 1)


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(600.0, 60.0), (40.0, 20.0)])
def test_an_address_that_is_not_ready_is_waited_for(timeout_s: float, patience_s: float):
    attempts = begun("relay", "learner", timeout_s=timeout_s)
    for now in (100.0, 99.9 + patience_s):
        assert attempts.failed(NOT_READY, now) > 0.0
        assert attempts.address == "relay"
    assert attempts.failed(NOT_READY, 100.0 + patience_s) == 0.0
    assert attempts.address == "learner"


def test_a_wait_for_an_address_is_the_first_again_when_a_learner_was_reached_or_the_address_was_away():
    attempts = begun("relay", "learner")
    attempts.failed(NOT_READY, 100.0)
    attempts.reached()
    assert attempts.failed(NOT_READY, 170.0) > 0.0
    assert attempts.failed(LearnerUnreachableError("x"), 171.0) == 0.0
    attempts.failed(NOT_READY, 172.0)
    assert attempts.failed(NOT_READY, 231.0) > 0.0, "for a minute from when it answered again"


def test_an_error_that_no_other_address_can_mend_ends_it_unless_every_address_is_to_be_tried():
    error = SpacesMismatchError("other spaces")
    with pytest.raises(SpacesMismatchError):
        begun("relay", "learner").failed(error, 100.0)
    attempts = begun("relay", "learner", moves_on=lambda _error: True)
    assert attempts.failed(error, 100.0) == 0.0
    with pytest.raises(SpacesMismatchError):
        attempts.failed(error, 100.0)


def test_a_home_is_tried_before_the_others():
    attempts = begun("relay", "learner")
    attempts.home = "other rank"
    tried = []
    for _ in range(3):
        tried.append(attempts.address)
        attempts.failed(LearnerUnreachableError("x"), 100.0)
    assert tried == ["other rank", "relay", "learner"]


def test_it_ends_at_the_timeout_and_says_how_often_it_tried():
    attempts = begun("relay", "learner", timeout_s=1.0)
    for now in (100.0, 100.0, 101.0):
        attempts.failed(NOT_READY, now)
    with pytest.raises(LearnerUnreachableError, match=r"no learner at relay, learner for 1 s \(3 attempts\): its lea"):
        attempts.failed(NOT_READY, 101.0)


def test_a_learner_that_was_lost_is_looked_for_from_then_on():
    attempts = begun("relay", timeout_s=1.0)
    attempts.reached()
    assert 0.0 < attempts.lost(NOT_READY, 900.0, lasted_s=800.0, timeout_s=5.0) <= 0.1
    assert attempts.failed(NOT_READY, 902.0) > 0.0
    with pytest.raises(LearnerUnreachableError, match="for 5 s"):
        attempts.failed(NOT_READY, 905.0)
