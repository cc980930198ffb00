"""The state of an actor's stream: which rollouts may come, on which credit, and with which policy."""

import pytest

from rollcast.learner.serving.round_places import Place
from rollcast.learner.serving.stream_state import StreamState

N_TRAJECTORIES = 3


def opened(*, room: bool, acknowledged: int = 0, **options: object) -> StreamState:
    """A stream that was just opened, to a destination with room or without."""
    state = StreamState("actor 'a'", N_TRAJECTORIES, acknowledged=acknowledged, **options)
    take(state, acknowledged, room=room)
    return state


def take(state: StreamState, sequence: int, *, room: bool) -> None:
    if state.acknowledge(sequence) and room:
        state.reserved()


def credit(state: StreamState) -> int:
    return state.progress(0, has_ended=False).credit_sequence


def test_second_credit_reserves_room():
    state = opened(room=True)
    assert credit(state) == 2
    assert state.spend() == N_TRAJECTORIES


def test_full_destination_gives_one_credit():
    state = opened(room=False, acknowledged=40)
    progress = state.progress(0, has_ended=False)
    assert (progress.acknowledged_sequence, progress.credit_sequence, state.spend()) == (40, 41, 0)


def test_credit_stays_one_or_two_ahead_whatever_room_there_is():
    state = opened(room=True)
    for sequence, room in ((1, False), (2, True), (3, False), (4, True), (5, True)):
        state.spend()
        take(state, sequence, room=room)
        assert 1 <= credit(state) - sequence <= 2


def test_reservation_is_spent_once():
    state = opened(room=True)
    assert [state.spend(), state.spend()] == [N_TRAJECTORIES, 0]


def test_credit_is_not_taken_back_when_the_reservation_is_spent():
    state = opened(room=True)
    state.spend()
    take(state, 1, room=False)
    assert credit(state) == 2, "nothing is free for a third"


def test_a_stream_with_a_reservation_asks_for_no_other():
    state = opened(room=True)
    assert not state.acknowledge(1)


def test_actors_that_do_not_play_ahead_have_one_credit_and_reserve_nothing():
    state = opened(room=True, plays_ahead=False)
    assert credit(state) == 1
    take(state, 1, room=True)
    assert (credit(state), state.spend()) == (2, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0),
        ({"bounded_staleness": True}, 7),
        ({"bounded_staleness": True, "in_step": True, "plays_ahead": False}, 3),
    ],
)
def test_progress_says_which_policy_may_play_the_next_rollout(options: dict[str, bool], expected: int):
    state = opened(room=False, acknowledged=2, **options)
    assert state.progress(7, has_ended=False).min_policy_version == state.min_policy_version == expected
    assert state.wanted_version == 7


def test_a_place_says_which_policy_plays_and_without_one_there_is_no_credit():
    place = Place(N_TRAJECTORIES, 0.0, version=9)
    state = opened(room=False, plays_ahead=False, place=place)
    assert (credit(state), state.min_policy_version, state.wanted_version) == (1, 9, 9)
    state.place = Place(N_TRAJECTORIES, 0.0)
    assert (credit(state), state.min_policy_version) == (0, 0), "it is asked for, and not there"
