"""The scaler over a learner's life: it starts, trains, is paused, falls silent, ends and refuses."""

import dataclasses
import re
import threading

import pytest

from rollcast.services.errors import LearnerUnreachableError, NotReadyError, PermissionDeniedError, UnauthenticatedError
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.tools.scaling.controller import ScalingRules
from rollcast.tools.scaling.scaler import Scaler
from tests.processes import DEADLINE_S

# looks until the number is known: a window after the first
SETTLED = 11
BUSY = LearnerStatus(phase=Phase.TRAINING, actors_alive=4, seconds=0.0)


class Learner:
    """Answers `now`, or raises it; its trainer waits for a share of the time, and its actors with it."""

    def __init__(self) -> None:
        self.now: LearnerStatus | Exception = BUSY
        self.time = 0.0
        self.waits = 0.0
        self.steps = 100  # a second
        self.scaler = Scaler(self.ask, ScalingRules(max_actors=16), window_s=10, hold_s=60, clock=lambda: self.time)

    def ask(self) -> LearnerStatus:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def stand_still(self, seconds: int) -> None:
        """Looks every second; the learner answers, and makes no update: it waits for rollouts."""
        assert isinstance(self.now, LearnerStatus)
        for second in range(1, seconds + 1):
            self.time += 1
            self.now = dataclasses.replace(self.now, waiting_for="rollouts", waiting_s=second)
            self.scaler.look()
        waited_s = self.now.waiting_fraction * self.now.seconds + seconds
        self.now = dataclasses.replace(
            self.now,
            seconds=self.now.seconds + seconds,
            waiting_fraction=waited_s / (self.now.seconds + seconds),
            waiting_for="",
            waiting_s=0.0,
        )

    def go_on(self, seconds: int, now: LearnerStatus | Exception | None = None) -> None:
        """Looks every second, from `now` on; the trainer trains as much as it does not wait."""
        if now is not None:
            self.now = now
        for _ in range(seconds):
            self.time += 1
            if isinstance(self.now, LearnerStatus) and self.now.phase is Phase.TRAINING:
                before = self.now
                waited_s = before.waiting_fraction * before.seconds + self.waits
                self.now = dataclasses.replace(
                    before,
                    seconds=before.seconds + 1,
                    waiting_fraction=waited_s / (before.seconds + 1),
                    env_steps=before.env_steps + self.steps,
                    updates=before.updates + 1,
                )
            self.scaler.look()


@pytest.fixture
def learner():
    return Learner()


def test_begins_with_the_actors_that_there_are(learner):
    learner.go_on(SETTLED)
    assert learner.scaler.wanted() == 4


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.TRAINING])
def test_learner_and_scaler_that_restart_together_keep_the_actors(learner, phase):
    learner.now = LearnerStatus(phase=phase)
    for n_actors in (0, 1, 2, 5, 8):
        learner.go_on(2, dataclasses.replace(learner.now, actors_alive=n_actors))
        with pytest.raises(NotReadyError, match="answered for less than 10 s"):
            learner.scaler.wanted()
    learner.go_on(1)
    assert learner.scaler.wanted() == 8


def test_window_begins_anew_if_the_learner_goes_again(learner):
    learner.go_on(9)
    before, learner.now = learner.now, LearnerUnreachableError("no answer")
    learner.go_on(1)
    learner.go_on(5, before)
    with pytest.raises(NotReadyError):
        learner.scaler.wanted()


def test_step_down_that_is_withheld_is_said_once(learner, caplog):
    caplog.set_level("INFO", "rollcast.tools.scaling")
    learner.waits = 0.5
    learner.go_on(SETTLED + 11)
    assert learner.scaler.wanted() == 8
    learner.waits = 0.0
    learner.go_on(400, dataclasses.replace(learner.now, actors_alive=8, queue_size=8, queue_capacity=8))
    assert learner.scaler.wanted() == 5, "4 were too few"
    (said,) = [message for message in caplog.messages if message.startswith("still")]
    assert re.fullmatch(
        r"still 5 actors: the actors waited in 100% of the time, .* but 4 were too few; tried again in \d+ s", said
    )


def test_metrics_say_what_is_wanted_and_whether_the_learner_answers(learner):
    def values() -> dict[str, float]:
        return {sample.name: sample.value for metric in learner.scaler.collect() for sample in metric.samples}

    learner.go_on(SETTLED)
    assert values() == {"rollcast_scaler_wanted_actors": 4, "rollcast_scaler_learner_answers": 1}
    learner.go_on(100, LearnerUnreachableError("no answer"))
    assert values() == {"rollcast_scaler_learner_answers": 0}, "nobody knows what is wanted"


def test_step_up_stays_if_the_learner_stands_still_before_it_is_judged(learner, caplog):
    caplog.set_level("INFO", "rollcast.tools.scaling")
    learner.waits = 0.5
    learner.go_on(SETTLED + 11)
    assert learner.scaler.wanted() == 8
    learner.now = dataclasses.replace(learner.now, actors_alive=8)
    # a full window of few updates is four times as long
    learner.stand_still(50)
    learner.steps = 200
    learner.go_on(11)
    assert learner.scaler.wanted() == 16, "twice the actors have trained twice as fast"
    changes = [message.partition(":")[0] for message in caplog.messages if " instead of " in message]
    assert changes == ["8 actors instead of 4", "16 actors instead of 8"]


def test_nothing_changes_until_the_wanted_actors_are_there(learner):
    learner.waits = 0.5
    learner.go_on(120)
    assert learner.scaler.wanted() == 8, "there are still 4"


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.STOPPING, Phase.STARTING])
def test_number_stays_while_the_learner_does_not_train(learner, phase):
    learner.go_on(SETTLED)
    learner.waits = 1.0
    learner.go_on(5)
    learner.go_on(100, dataclasses.replace(learner.now, phase=phase))
    assert learner.scaler.wanted() == 4


def test_learner_that_starts_wants_the_fewest_actors(learner):
    learner.go_on(SETTLED, LearnerStatus(phase=Phase.STARTING))
    assert learner.scaler.wanted() == 1
    learner.go_on(1, BUSY)
    assert learner.scaler.wanted() == 4, "they were on their way"


class TestEnd:
    def test_nobody_is_wanted(self, learner):
        learner.go_on(1)
        learner.go_on(1, LearnerStatus(phase=Phase.FINISHED))
        assert learner.scaler.wanted() == 0

    def test_learner_that_ended_and_went_wants_nobody(self, learner):
        learner.go_on(1, LearnerStatus(phase=Phase.FINISHED))
        learner.go_on(1000, LearnerUnreachableError("no answer"))
        assert learner.scaler.wanted() == 0

    def test_next_run_begins_anew(self, learner):
        learner.go_on(1, LearnerStatus(phase=Phase.FINISHED))
        learner.go_on(SETTLED, dataclasses.replace(BUSY, actors_alive=2))
        assert learner.scaler.wanted() == 2


class TestSilence:
    def test_number_is_unknown_before_the_first_answer(self, learner):
        with pytest.raises(NotReadyError, match="has not been asked yet"):
            learner.scaler.wanted()
        learner.go_on(1, LearnerUnreachableError("no learner answers at HOST:1"))
        with pytest.raises(
            NotReadyError, match=r"has not answered yet: no learner answers at HOST:1.*--learner-address"
        ):
            learner.scaler.wanted()

    def test_number_stays_for_a_while_and_then_is_unknown(self, learner):
        learner.go_on(SETTLED)
        learner.go_on(60, LearnerUnreachableError("no answer"))
        assert learner.scaler.wanted() == 4
        learner.go_on(1)
        with pytest.raises(NotReadyError, match="has not answered for 61 s: no answer"):
            learner.scaler.wanted()

    def test_learner_that_answers_again_keeps_its_number(self, learner):
        learner.waits = 0.5
        learner.go_on(SETTLED + 11)
        before, learner.now = learner.now, LearnerUnreachableError("no answer")
        learner.go_on(500)
        learner.go_on(1, before)
        assert learner.scaler.wanted() == 8


@pytest.mark.parametrize("error", [UnauthenticatedError, PermissionDeniedError])
def test_refused_token_is_said_at_once(learner, error):
    learner.go_on(1)
    learner.go_on(1, error("the token is unknown"))
    with pytest.raises(error, match=r"the token is unknown.*--token-file"):
        learner.scaler.wanted()


def test_who_waits_for_a_change_is_woken(learner):
    learner.go_on(SETTLED)
    learner.now = LearnerStatus(phase=Phase.FINISHED)
    waiting = threading.Thread(target=learner.scaler.wait_for_change, args=(4, 30.0))
    waiting.start()
    learner.go_on(1)
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
