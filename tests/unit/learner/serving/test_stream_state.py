import pytest

from rollcast.learner.serving.credits import CreditRule, StreamCredits

N_TRAJECTORIES = 3


class CountedRoom:
    """Room for a number of trajectories."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity

    def reserve(self, n_trajectories: int) -> bool:
        if n_trajectories > self.free:
            return False
        self.free -= n_trajectories
        return True

    def release(self, n_trajectories: int) -> None:
        self.free += n_trajectories


def make_credits(room: CountedRoom, *, acknowledged: int = 0, in_step: bool = False) -> StreamCredits:
    return StreamCredits(room, N_TRAJECTORIES, acknowledged=acknowledged, plays_ahead=not in_step)


def test_second_credit_reserves_room():
    room = CountedRoom(4)
    assert make_credits(room).credit == 2
    assert room.free == 1


def test_full_destination_gives_one_credit():
    room = CountedRoom(2)
    credits_now = make_credits(room, acknowledged=40)
    assert (credits_now.acknowledged, credits_now.credit, room.free) == (40, 41, 2)


def test_credit_stays_one_or_two_ahead_whatever_room_there_is():
    room = CountedRoom(3)
    credits_now = make_credits(room)
    for sequence, given_back in ((1, 0), (2, 3), (3, 0), (4, 3), (5, 3)):
        n_reserved = credits_now.spend()
        credits_now.acknowledge(sequence)
        assert credits_now.acknowledged == sequence
        assert 1 <= credits_now.credit - sequence <= 2
        room.free += given_back if n_reserved else 0


def test_reservation_is_spent_once():
    credits_now = make_credits(CountedRoom(3))
    assert [credits_now.spend(), credits_now.spend()] == [N_TRAJECTORIES, 0]


def test_credit_is_not_taken_back_when_the_reservation_is_spent():
    room = CountedRoom(3)
    credits_now = make_credits(room)
    credits_now.spend()
    credits_now.acknowledge(1)
    assert (credits_now.credit, room.free) == (2, 0), "nothing is free for a third"


def test_close_gives_the_reservation_back_once():
    room = CountedRoom(3)
    credits_now = make_credits(room)
    credits_now.close()
    credits_now.close()
    assert room.free == 3


def test_actors_in_step_have_one_credit_and_reserve_nothing():
    room = CountedRoom(9)
    credits_now = make_credits(room, in_step=True)
    assert credits_now.credit == 1
    credits_now.acknowledge(1)
    assert (credits_now.credit, room.free) == (2, 9)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (CreditRule(), 0),
        (CreditRule(policy_version=lambda: 7), 0),
        (CreditRule(policy_version=lambda: 7, bounded_staleness=True), 7),
        (CreditRule(policy_version=lambda: 7, bounded_staleness=True, in_step=True), 3),
    ],
)
def test_rule_says_which_policy_may_play_the_next_rollout(rule: CreditRule, expected: int):
    assert rule.min_policy_version(3) == expected
