import pytest

from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.tools.scaling.waits import WaitWindow
from tests.histories import replay_status


def status(seconds=0.0, waited_s=0.0, *, updates=None, **fields):
    """A status of a learner with two updates a second, unless they are given."""
    fraction = waited_s / seconds if seconds else 0.0
    updates = int(2 * seconds) if updates is None else updates
    return LearnerStatus(phase=Phase.TRAINING, seconds=seconds, waiting_fraction=fraction, updates=updates, **fields)


def window_of(*statuses, seconds=10.0):
    window = WaitWindow(seconds)
    for at, given in statuses:
        window.add(given, at)
    return window


def test_nothing_is_known_until_the_window_is_full():
    assert window_of().waits() is None
    assert window_of((0.0, status()), (9.0, status(9.0))).waits() is None


def test_waits_of_the_window_count_and_those_before_do_not():
    # it had waited for all of its first 1000 s
    window = window_of((0.0, status(1000.0, 1000.0, env_steps=50)), (10.0, status(1010.0, 1002.0, env_steps=250)))
    waits = window.waits()
    assert waits.learner == pytest.approx(0.2)
    assert waits.env_steps_per_second == 20


def test_window_moves_on():
    waits = window_of(*((float(second), status(second, min(second, 20.0))) for second in range(41))).waits()
    assert waits.learner == pytest.approx(0.0)


def test_wait_that_has_not_ended_counts():
    began = status(100.0, 0.0)
    still = status(110.0, 0.0, waiting_for="rollouts", waiting_s=8.0)
    assert window_of((0.0, began), (10.0, still)).waits().learner == pytest.approx(0.8)


def test_actors_wait_while_the_queue_is_at_least_half_full():
    fill = [0, 8, 16, 12]
    window = window_of(
        *((5.0 * at, status(5.0 * at, queue_size=size, queue_capacity=16)) for at, size in enumerate(fill)), seconds=15
    )
    assert window.waits().actors == 0.75


def test_queue_without_room_at_all_is_no_wait():
    assert window_of((0.0, status()), (10.0, status(10.0))).waits().actors == 0.0


@pytest.mark.parametrize(("who", "expected"), [("the actors", 1.0), ("the trainer", 0.0)])
def test_with_a_replay_buffer_actors_wait_for_its_limiter(who, expected):
    replay = replay_status(waiting=(ReplayWaiting(reason="", seconds=1.0, who=who),))
    window = window_of((0.0, status(replay=replay)), (10.0, status(10.0, replay=replay)))
    assert window.waits().actors == expected


def test_run_that_went_back_to_a_checkpoint_begins_a_new_window():
    window = window_of((0.0, status(100.0, env_steps=100)), (10.0, status(50.0, env_steps=60)))
    assert window.waits() is None


def test_window_of_few_updates_is_longer_and_not_endlessly_so():
    """Updates of a second, one in eight seconds: ten seconds have one wait, or two."""
    statuses = [
        (float(t), status(float(t), t // 8 * 7.0 + min(t % 8, 7), updates=t // 8, env_steps=t // 8 * 160))
        for t in range(90)
    ]
    assert window_of(*statuses[:40]).waits() is None, "four updates, 39 seconds"
    waits = window_of(*statuses[:41]).waits()
    assert waits.learner == pytest.approx(7 / 8, abs=0.03)
    slower = [(float(t), status(float(t), float(t), updates=0)) for t in range(41)]
    assert window_of(*slower[:40]).waits() is None
    assert window_of(*slower).waits().learner == 1.0, "it waits for its first update"


def test_steps_a_second_are_those_between_updates():
    """A batch of 160 steps every three seconds; the window holds five or six of them."""
    rates = set()
    for begin in range(3):
        statuses = ((float(t), status(t, updates=t // 3, env_steps=t // 3 * 160)) for t in range(begin, begin + 18))
        rates.add(window_of(*statuses, seconds=15).waits().env_steps_per_second)
    assert rates == {160 / 3}


def test_steps_a_second_leave_out_a_time_in_which_the_learner_stood_still():
    """Updates of 80 steps every second, except for four seconds, with or without answers in between."""
    for are_answered in (False, True):
        statuses = []
        for t in range(21):
            trained = min(t, 8) + max(t - 12, 0)
            if are_answered or not 8 < t < 12:
                statuses.append((float(t), status(t, updates=trained, env_steps=80 * trained)))
        assert window_of(*statuses, seconds=15).waits().env_steps_per_second == 80


def test_mean_number_of_actors_is_that_of_the_window():
    window = window_of((0.0, status(actors_alive=2)), (5.0, status(5.0, actors_alive=4)), (10.0, status(10.0)))
    assert window.waits().n_actors == 2
