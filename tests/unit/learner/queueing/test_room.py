"""Every short schedule of producers and a consumer, by the room that they share."""

from types import SimpleNamespace

import pytest

from rollcast.learner.queueing.room import Room, Turn
from tests.simulation.walk import walk


class Producers:
    """Producers of rollouts of one and two trajectories, and a consumer that takes batches; one thread, no time.

    What must be true is counted here, from what has happened and what the turns say.
    """

    def __init__(self, capacity: int, batch: int) -> None:
        self.room, self.capacity, self.batch = Room(capacity), capacity, batch
        self.turns: list[Turn] = []
        self.promised: list[int] = []
        # the sizes of those that have come without a reservation and were not withdrawn, in their order
        self.line: list[Turn] = []
        self.n_taken = self.n_cut = self.n_kept = self.awaited = 0
        # the trajectories that the consumer lacks for the batch for which it has waited
        self.lacks = 0
        # whether the consumer has found nothing, and takes whatever comes
        self.is_wanted = False

    # -- what can happen --

    def events(self) -> list[tuple[str, int]]:
        happens = [("put", 1), ("put", 2), ("reserve", 1), ("reserve", 2), ("take", 1), ("take", self.batch)]
        if self.promised:
            happens += [("send what was promised", 0), ("release", 0)]
        if self.waiting():
            happens += [("withdraw", 0), ("withdraw", -1)]
        if self.awaited == 0 and not self.room.is_enough(self.batch):
            happens.append(("wait", self.batch))
        happens += [("keep", 1)] if not self.awaited else []
        happens += [("give room", 0)] if self.n_kept else []
        return happens

    def happen(self, event: tuple[str, int]) -> None:
        what, n = event
        if what == "put":
            self.offer(n, n_reserved=0)
        elif what == "reserve":
            could = self.queued_later() + sum(self.promised) + n <= self.capacity
            assert self.room.reserve(n) is could, f"{n} of {self.capacity}"
            self.promised += [n] if could else []
        elif what == "send what was promised":
            n_reserved = self.promised.pop(0)
            turn = self.offer(n_reserved, n_reserved=n_reserved)
            assert turn.is_in, "it had room"
        elif what == "release":
            self.room.release(self.promised.pop(0))
        elif what == "withdraw":
            turn = self.waiting()[n]
            self.room.withdraw(turn)
            assert turn.is_in is False
        elif what == "wait":
            self.awaited = self.lacks = n
            self.is_wanted = True
            self.room.begin_wait(n)
        elif what == "give room":
            self.n_kept = 0
            self.room.give_room()
        else:
            self.take(n, keep_room=what == "keep")
        self.check()

    def offer(self, n: int, *, n_reserved: int) -> Turn:
        before = len(self.waiting())
        turn = Turn(SimpleNamespace(n_envs=n), 0.0, lambda: None)
        self.turns.append(turn)
        if not n_reserved:
            self.line.append(turn)
        self.room.offer(turn, n_reserved)
        assert n_reserved or not before or turn.is_in is None, "it has overtaken one that waits"
        return turn

    def take(self, n: int, *, keep_room: bool) -> None:
        queued = self.queued()
        taken = self.room.take(n, keep_room=keep_room)
        self.awaited = 0
        if taken is None:
            assert not queued, "something was queued"
            self.is_wanted |= not keep_room
            return
        self.is_wanted = False
        # One that comes to an empty queue may enter it now, and be taken.
        size = taken.stop - taken.start
        assert 0 < size <= n
        assert taken.start == self.n_cut, "trajectories are left out, or come twice"
        self.n_cut = 0 if taken.stop == taken.rollout.n_envs else taken.stop
        self.n_taken += size
        self.lacks = max(0, self.lacks - size)
        self.n_kept += size if keep_room else 0

    # -- what must be true --

    def waiting(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.is_in is None]

    def queued(self) -> int:
        return sum(turn.rollout.n_envs for turn in self.turns if turn.is_in) - self.n_taken

    def queued_later(self) -> int:
        """The trajectories that the consumer does not take at once, and those that keep their room."""
        return max(0, self.queued() - self.awaited) + self.n_kept

    def check(self) -> None:
        room, promised, queued = self.room, sum(self.promised), self.queued()
        assert (room.size, room.n_kept, list(room.turns)) == (queued, self.n_kept, self.waiting())
        assert promised <= self.capacity, "more is promised than there is"
        over = queued + self.n_kept + promised - self.capacity - self.lacks
        assert over <= max((turn.rollout.n_envs for turn in self.line), default=0), (
            f"{over} more than there is room for"
        )
        decided = [turn.is_in for turn in self.line if turn.is_in is not False]
        assert decided == sorted(decided, key=lambda is_in: is_in is None), "a later rollout got in before"
        for turn in self.waiting()[:1]:
            fits = queued + self.n_kept + promised + turn.rollout.n_envs <= self.capacity + self.awaited
            assert not fits, "a rollout waits, and there is room for it"
            assert queued or self.n_kept or (promised and not self.is_wanted), "a rollout waits for nobody"

    def settle(self) -> None:
        """All that was promised comes, and the consumer takes whatever there is."""
        while self.promised:
            self.happen(("send what was promised", 0))
        self.happen(("give room", 0))
        for _ in range(2 * len(self.turns) + 2):
            self.take(self.batch, keep_room=False)
        assert not self.waiting(), "a rollout waits, and nothing is queued"
        assert not self.queued()
        assert self.room.reserve(self.capacity), "room is missing at the end"
        self.room.release(self.capacity)
        self.offer(self.capacity + 1, n_reserved=0)
        self.offer(1, n_reserved=0)
        self.room.close()
        assert all(turn.is_in is not None for turn in self.turns), "one waits after the end"
        assert self.offer(1, n_reserved=0).is_in is False


@pytest.mark.parametrize(
    ("capacity", "batch", "longest"),
    [(1, 1, 4), (2, 2, 4), (3, 2, 4), pytest.param(2, 3, 5, marks=pytest.mark.slow)],
)
def test_whatever_happens_nothing_exceeds_its_room_and_nobody_waits_for_ever(capacity: int, batch: int, longest: int):
    assert walk(lambda: Producers(capacity, batch), longest) > 1000
