"""The state of an actor's stream: which rollouts may come, on which credit, and with which policy."""

import pytest

from rollcast.learner.serving.round_places import Place
from rollcast.learner.serving.stream_state import StreamState
from rollcast.services.errors import DuplicateSequenceError, LimitExceededError, MissingMessageError, RollcastError
from tests.simulation.walk import walk

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


def test_a_stream_with_a_reservation_asks_for_no_other():
    state = opened(room=True)
    assert not state.acknowledge(1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0),
        ({"credit_lag": 0}, 7),
        ({"credit_lag": 2}, 5),
        ({"credit_lag": 9}, 0),
        ({"credit_lag": 0, "in_step": True, "plays_ahead": False}, 3),
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


class Stream:
    """An actor and its streams to a learner with some room; one thread, no time. What must be true is counted here."""

    def __init__(self, capacity: int, *, plays_ahead: bool) -> None:
        self.free = self.capacity = capacity
        self.plays_ahead = plays_ahead
        # the sequences that the learner has taken, and those that it keeps in its room
        self.taken: list[int] = []
        self.n_kept = 0
        self.open()

    def open(self) -> None:
        acknowledged = len(self.taken)
        self.state = StreamState("actor 'a'", 1, acknowledged=acknowledged, plays_ahead=self.plays_ahead)
        self.came_on_stream: set[int] = set()
        self.credit = 0
        self.give_credit(acknowledged)

    def give_credit(self, sequence: int) -> None:
        reserves = self.state.acknowledge(sequence) and self.free > 0
        assert self.plays_ahead or not reserves
        if reserves:
            self.free -= 1
            self.state.reserved()
        # A second credit is backed by room; none is taken back once its room is spent.
        self.credit = max(self.credit, sequence + (2 if reserves else 1))

    def events(self) -> list[tuple[str, int]]:
        last = len(self.taken)
        happens = [("send", last + ahead) for ahead in (-1, 0, 1, 2, 3) if last + ahead > 0]
        happens += [("open again", 0)]
        return happens + ([("make room", 0)] if self.n_kept else [])

    def happen(self, event: tuple[str, int]) -> None:
        what, sequence = event
        if what == "send":
            self.send(sequence)
        elif what == "open again":
            self.free += self.state.spend()
            self.open()
        else:
            self.n_kept -= 1
            self.free += 1
        progress = self.state.progress(0, has_ended=False)
        assert progress.acknowledged_sequence == len(self.taken)
        assert progress.credit_sequence == self.credit
        assert self.free >= 0

    def send(self, sequence: int) -> None:
        last, credit_now = len(self.taken), self.state.progress(0, has_ended=False).credit_sequence
        expected: type[RollcastError] | None = None
        if sequence in self.came_on_stream or any(sequence < came for came in self.came_on_stream):
            expected = DuplicateSequenceError
        elif sequence > credit_now:
            expected = LimitExceededError
        elif sequence > last + 1:
            expected = MissingMessageError
        if expected is not None:
            with pytest.raises(expected):
                self.state.order.receive(sequence)
            return
        is_next = self.state.order.receive(sequence)
        assert is_next is (sequence == last + 1)
        self.came_on_stream.add(sequence)
        if not is_next:
            return
        n_reserved = self.state.spend()
        if n_reserved or self.free:
            self.free -= 1 - n_reserved
            self.n_kept += 1
            self.taken.append(sequence)
            self.give_credit(sequence)
        else:
            # the rollout waited for room until its stream broke
            self.open()

    def settle(self) -> None:
        """The learner takes what it has, and the actor sends ten more rollouts."""
        for _ in range(10):
            self.free, self.n_kept = self.free + self.n_kept, 0
            self.send(len(self.taken) + 1)
        assert len(self.taken) >= 10
        assert self.taken == list(range(1, len(self.taken) + 1)), "each once, in order"
        assert self.free + self.n_kept + self.state.spend() == self.capacity, "what was reserved is given back once"


@pytest.mark.parametrize(("capacity", "plays_ahead"), [(1, True), (2, True), (1, False)])
def test_whatever_an_actor_sends_each_rollout_is_taken_once_and_on_credit(capacity: int, plays_ahead: bool):
    assert walk(lambda: Stream(capacity, plays_ahead=plays_ahead), 5) > 1000
