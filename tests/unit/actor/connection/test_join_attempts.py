"""Whom an actor asks to join next, and when."""

from typing import ClassVar

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
from tests.simulation.walk import walk

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


def test_an_error_that_no_other_address_can_mend_ends_it_unless_every_address_is_to_be_tried():
    error = SpacesMismatchError("other spaces")
    with pytest.raises(SpacesMismatchError):
        begun("relay", "learner").failed(error, 100.0)
    attempts = begun("relay", "learner", moves_on=lambda _error: True)
    assert attempts.failed(error, 100.0) == 0.0
    with pytest.raises(SpacesMismatchError):
        attempts.failed(error, 100.0)


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


class Search:
    """An actor that looks for a learner by three addresses; the answers and the clock are events."""

    ADDRESSES = ("home", "relay", "learner")
    ERRORS: ClassVar = {
        "not ready": NOT_READY,
        "unreachable": LearnerUnreachableError("x"),
        "busy": ThrottledError("x"),
    }

    def __init__(self) -> None:
        self.now, self.timeout_s, self.has_given_up = 100.0, 300.0, False
        self.attempts = JoinAttempts(self.ADDRESSES[1:])
        self.attempts.rank_address = "home"
        self.attempts.begin(self.now, self.timeout_s)
        self.ends_at = self.now + self.timeout_s
        # the addresses of this round, and since when each has answered that it is not ready
        self.tried: list[str] = []
        self.since: dict[str, float] = {}

    def events(self) -> list[str]:
        return [] if self.has_given_up else [*self.ERRORS, "reached and lost", "40 s go by", "5 minutes go by"]

    def happen(self, event: str) -> None:
        address, attempts = self.attempts.address, self.attempts
        assert address == self.ADDRESSES[len(self.tried)], "the addresses are tried in their order"
        try:
            if event == "40 s go by":
                self.now += 40.0
                return
            if event == "5 minutes go by":
                self.now += 300.0
                return
            if event == "reached and lost":
                attempts.reached()
                delay_s = attempts.lost(NOT_READY, self.now, lasted_s=11.0, timeout_s=self.timeout_s)
                self.ends_at = self.now + self.timeout_s
                self.since.clear()
                assert 0.0 < delay_s <= 0.1, "it looks for it at once"
                self.tried.clear()
            else:
                self.fail(address, self.ERRORS[event])
        except LearnerUnreachableError:
            self.has_given_up = True
            assert self.now + 5.0 > self.ends_at, "it gives up too soon"

    def fail(self, address: str, error: RollcastError) -> None:
        is_patient = isinstance(error, NotReadyError) and self.now - self.since.get(address, self.now) < 60.0
        if isinstance(error, NotReadyError):
            self.since.setdefault(address, self.now)
        else:
            self.since.pop(address, None)
        delay_s = self.attempts.failed(error, self.now)
        if delay_s:
            assert is_patient or address == "learner", "there is another address"
            assert self.now + delay_s <= self.ends_at, "it goes on for too long"
            assert delay_s <= 5.0
            self.now += delay_s
            self.tried.clear()
        else:
            assert not is_patient, "it is not waited for"
            self.tried.append(address)

    def settle(self) -> None:
        """Looks where nobody is: each address is tried, and it gives up in time."""
        for _ in range(500):
            if self.has_given_up:
                return
            self.happen("unreachable")
        raise AssertionError("it never gives up")


def test_whatever_the_addresses_answer_each_has_its_turn_and_the_search_ends():
    assert walk(Search, 4) > 500
