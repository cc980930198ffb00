"""The controller, with a simulated learner whose capacity is known."""

import itertools

import pytest

from rollcast.tools.scaling.controller import ScalingController, ScalingRules
from rollcast.tools.scaling.waits import Waits
from tests.unit.tools.scaling.simulated import SimulatedLearner

RULES = ScalingRules(max_actors=100)


def follow(learner, rules=RULES, *, n_actors=1, seconds=1500, step_s=15, start=0.0):
    """Returns the wanted number after each window."""
    controller = ScalingController(rules, n_actors)
    wanted = [controller.wanted]
    for number in range(seconds // step_s):
        controller.decide(learner.waits(controller.wanted), start + number * step_s)
        wanted.append(controller.wanted)
    return wanted


@pytest.mark.parametrize("needed", [1.0, 1.5, 2.5, 3.0, 7.3, 10.0, 24.9, 63.0])
@pytest.mark.parametrize("n_actors", [1, 4, 30, 100])
def test_settles_where_the_trainer_no_longer_waits_and_stays(needed, n_actors):
    learner = SimulatedLearner(needed)
    wanted = follow(learner, n_actors=n_actors)
    settled = wanted[-1]
    assert set(wanted[-20:]) == {settled}, "it swings"
    assert learner.waits(settled).learner <= RULES.up_above
    assert settled <= max(1.25 * needed + 1, 2), "more than a fifth of them would wait"


@pytest.mark.parametrize("needed", [2.5, 10.0, 63.0])
def test_changes_direction_at_most_once(needed):
    for n_actors in (1, 100):
        wanted = follow(SimulatedLearner(needed), n_actors=n_actors)
        steps = [after - before for before, after in itertools.pairwise(wanted) if after != before]
        turns = sum((one > 0) != (other > 0) for one, other in itertools.pairwise(steps))
        assert turns <= 1


def test_one_step_up_is_proportional_and_bounded():
    assert follow(SimulatedLearner(10.0), n_actors=8)[:2] == [8, 10]
    assert follow(SimulatedLearner(10.0), n_actors=2)[:4] == [2, 4, 8, 10]
    # the trainer waited all the time
    assert follow(SimulatedLearner(1e9), ScalingRules(max_actors=100, max_growth=3.0), n_actors=1)[:4] == [1, 3, 9, 27]


def test_keeps_its_limits():
    assert max(follow(SimulatedLearner(1e6), ScalingRules(max_actors=5))) == 5
    assert min(follow(SimulatedLearner(0.5), ScalingRules(min_actors=3, max_actors=9), n_actors=9)) == 3
    assert ScalingController(ScalingRules(min_actors=2, max_actors=9), 0).wanted == 2
    assert ScalingController(ScalingRules(min_actors=2, max_actors=9), 20).wanted == 9


def test_keeps_the_number_between_the_thresholds():
    controller = ScalingController(RULES, 10)
    for learner, actors in ((0.1, 0.0), (0.05, 1.0), (0.02, 1.0), (0.0, 0.4)):
        waits = Waits(learner=learner, actors=actors, n_actors=10, env_steps_per_second=1)
        assert not controller.decide(waits, 0.0)
    assert controller.wanted == 10


def test_steps_down_only_after_the_cooldown():
    controller, idle = ScalingController(RULES, 10), SimulatedLearner(1.0)
    assert controller.decide(idle.waits(10), 0.0)
    assert controller.wanted == 8
    assert not controller.decide(idle.waits(8), RULES.cooldown_s - 1)
    assert controller.decide(idle.waits(8), RULES.cooldown_s)
    assert controller.wanted == 6


def test_number_that_was_too_small_is_tried_again_after_a_while():
    wanted = follow(SimulatedLearner(2.5), n_actors=3, seconds=int(2.5 * RULES.retry_s))
    assert wanted.count(2) == 3, "at first, and once in each period"
    assert set(wanted) == {2, 3}


def test_step_that_brings_nothing_is_taken_back():
    # two cores: more actors play no more, and the trainer goes on waiting
    wanted = follow(SimulatedLearner(10.0, cores=2.0), n_actors=1)
    assert wanted[:4] == [1, 2, 4, 2]
    assert set(wanted[3:]) == {2}
    again = follow(SimulatedLearner(10.0, cores=2.0), n_actors=1, seconds=int(RULES.retry_s) + 120)
    assert 4 in again[4:], "it is tried again"
    assert again[-1] == 2


def waits_of(n_actors, learner, rate):
    return Waits(learner=learner, actors=0.0, n_actors=n_actors, env_steps_per_second=rate)


def test_small_step_is_not_judged_by_noise():
    controller = ScalingController(RULES, 6)
    assert controller.decide(waits_of(6, 0.14, 1000), 0.0)
    assert controller.wanted == 7
    assert controller.decide(waits_of(7, 0.12, 990), 20.0)
    assert controller.wanted == 8, "it is not taken back"


def test_small_steps_that_bring_nothing_together_are_taken_back():
    controller, wanted = ScalingController(RULES, 6), [6]
    for window in range(10):
        controller.decide(waits_of(controller.wanted, 0.14, 1000), 20.0 * window)
        wanted.append(controller.wanted)
    assert wanted[:5] == [6, 7, 9, 6, 6]
    assert set(wanted[3:]) == {6}


def test_step_is_not_judged_by_a_window_without_updates():
    controller = ScalingController(RULES, 4)
    assert controller.decide(waits_of(4, 0.5, 1000), 0.0)
    assert controller.wanted == 8
    assert controller.decide(waits_of(8, 1.0, 0), 20.0), "the next window begins after it"
    assert controller.wanted == 8
    assert controller.decide(waits_of(8, 0.5, 1000), 40.0)
    assert controller.wanted == 4, "the next window judges the same step"


def test_steps_before_a_quiet_time_are_not_judged_later():
    controller = ScalingController(RULES, 4)
    controller.decide(waits_of(4, 0.5, 1000), 0.0)
    controller.decide(waits_of(8, 0.05, 2000), 20.0)
    # the task became another: longer episodes of a slower simulator
    controller.decide(waits_of(8, 0.3, 900), 1000.0)
    assert controller.wanted == 12


def test_actors_that_are_not_there_yet_do_not_raise_the_number():
    controller = ScalingController(RULES, 20)
    assert not controller.has(15)
    assert controller.has(16)
    # of 20 wanted, 16 are there, who keep the trainer busy for 80 %: 20 are enough
    waits = Waits(learner=0.2, actors=0.0, n_actors=16, env_steps_per_second=1)
    assert not controller.decide(waits, 0.0)
