import pytest

from rollcast.services.errors import RollcastError
from rollcast.services.streams.stream_order import StreamOrder
from tests.simulation.walk import walk


class BundledOrder:
    """The order of a stream whose rollouts are answered later, several at a time, as behind a relay."""

    def __init__(self) -> None:
        self.order = StreamOrder("actor 'a' behind relay 'r'")
        self.last, self.acknowledged, self.credit = 0, 0, 0

    def events(self) -> list[tuple[str, int]]:
        happens = [("send", max(self.last, self.acknowledged) + ahead) for ahead in (0, 1, 2)]
        happens += [("answer", 3)] if not self.credit else [("answer", 0)]
        return happens + ([("answer", 1)] if self.acknowledged < self.last else [])

    def happen(self, event: tuple[str, int]) -> None:
        what, n = event
        if what == "answer":
            # the first says how far an earlier stream was
            self.acknowledged += n
            self.credit = self.acknowledged + 2
            self.order.acknowledged = max(self.order.acknowledged, self.acknowledged)
            self.order.credit = max(self.order.credit, self.credit)
            return
        may_come = self.last < n <= self.credit and n <= max(self.last, self.acknowledged) + 1
        if not may_come:
            with pytest.raises(RollcastError):
                self.order.receive(n)
            return
        is_next = self.order.receive(n)
        assert is_next is (n > self.acknowledged)
        self.last = n

    def settle(self) -> None:
        """Sends the next rollout, which may come once it is credited."""
        self.happen(("answer", max(0, self.last - self.acknowledged)))
        self.happen(("send", max(self.last, self.acknowledged) + 1))
        assert self.last == self.acknowledged + 1


def test_an_order_holds_for_several_rollouts_that_are_not_answered_yet():
    assert walk(BundledOrder, 7) > 1000
