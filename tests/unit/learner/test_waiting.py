import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S
from rollcast.learner.waiting import QUIET_S, WaitLog, WaitMonitor, explain_wait, is_played, longest_rollout_s
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState


def test_a_wait_has_a_reason_only_while_it_lasts():
    waits = WaitMonitor()
    assert waits.current() == ("", 0.0)
    with waits.waiting_for("rollouts"):
        assert waits.current()[0] == "rollouts"
        waits.explain("rollouts from local-1")
        reason, seconds = waits.current()
        assert reason == "rollouts from local-1"
        assert seconds >= 0
    assert waits.current() == ("", 0.0)
    waits.explain("too late")
    assert waits.current() == ("", 0.0)
    with pytest.raises(RuntimeError), waits.waiting_for("rollouts"):
        raise RuntimeError
    assert waits.current() == ("", 0.0)


def test_a_wait_within_another_says_how_that_one_will_end():
    waits = WaitMonitor()
    with waits.waiting_for("a batch"):
        with waits.waiting_for("rollouts"):
            waits.explain("rollouts from local-1")
            assert waits.current()[0] == "a batch, and so for rollouts from local-1"
        assert waits.current()[0] == "a batch"
        waits.explain("a batch of 3")
        assert waits.current()[0] == "a batch of 3"
    assert waits.current() == ("", 0.0)


def test_the_time_of_the_outer_wait_is_told_and_logged(monkeypatch, caplog):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = WaitMonitor()
    with caplog.at_level(logging.INFO), waits.waiting_for("a batch"):
        now += 8.0
        with waits.waiting_for("rollouts"):
            waits.explain("rollouts")
            assert caplog.messages == []
            now += 4.0
            waits.explain("rollouts")
            assert waits.current()[1] == 12.0
    assert caplog.messages == ["waiting 12 s for a batch, and so for rollouts"]


def test_a_wait_is_logged_after_ten_seconds_and_then_each_minute(caplog: pytest.LogCaptureFixture):
    log = WaitLog()
    with caplog.at_level(logging.INFO):
        for seconds in range(200):
            log.note(f"{seconds} things", float(seconds))
    assert caplog.messages == [f"waiting {seconds} s for {seconds} things" for seconds in (10, 70, 130, 190)]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_another_wait_begins_anew(caplog: pytest.LogCaptureFixture):
    log = WaitLog()
    with caplog.at_level(logging.INFO):
        for seconds in (9.9, 10.0, 0.1, 9.9, 12.0):
            log.note("rollouts", seconds)
    assert caplog.messages == ["waiting 10 s for rollouts", "waiting 12 s for rollouts"]


ACTOR = ActorInfo(actor_id="left", state=ActorState.STREAMING, slot=0, incarnation=1)
PLAYING = replace(ACTOR, acting_state=ActingState.ACTING)


def test_a_short_silence_is_nobodys_fault_and_a_long_one_is_the_environments():
    assert explain_wait([replace(ACTOR, idle_s=2.0)], ()) == (
        "rollouts from 1 connected actor (left has been quiet for 2 s)"
    )
    quiet = replace(ACTOR, actor_id="right", idle_s=QUIET_S)
    assert explain_wait([replace(ACTOR, idle_s=1.0), quiet], ()) == (
        "rollouts from 2 connected actors (right has been quiet for 10 s): their environments are slow or hang; "
        "if steps take seconds, lower --n-rollout-steps"
    )


def test_a_learner_at_whose_actor_environments_dial_in_asks_for_environments():
    gone = replace(ACTOR, actor_id="local-0", state=ActorState.LEFT)
    assert explain_wait([gone], ("unix:/s", "localhost:1"), dialled="localhost:50052") == (
        "environments to dial in at localhost:50052: start one there"
    )
    lost = replace(gone, state=ActorState.LOST, last_error="exit code -9")
    assert explain_wait([lost], ("unix:/s",), dialled="localhost:50052") == (
        "environments to dial in at localhost:50052: start one there; local-0 is lost: exit code -9"
    )
    assert "rollouts from 1 connected actor" in explain_wait([gone, ACTOR], ("unix:/s",), dialled="localhost:50052")


@pytest.mark.parametrize(
    ("change", "is_so"),
    [
        ({}, True),
        ({"idle_s": 1.0}, False),
        ({"idle_s": 640.1}, False),
        ({"state": ActorState.LOST}, False),
        ({"acting_state": ActingState.SENDING}, False),
        ({"acting_state": None}, False),
    ],
    ids=["plays", "since later", "for too long", "is lost", "sends", "tells nothing"],
)
def test_an_actor_plays_while_it_says_so_but_not_for_ever(change: dict[str, Any], is_so: bool):
    playing = replace(PLAYING, **({"idle_s": 640.0} | change))
    assert is_played([ACTOR, playing], time.monotonic() - 5.0, longest_s=640.0) is is_so


def test_a_rollout_may_take_the_longest_step_for_each_of_its_steps():
    assert longest_rollout_s(64, 600.0) == 64 * 600
    assert longest_rollout_s(64, 1.0) == 64 * DEFAULT_STEP_TIMEOUT_S
