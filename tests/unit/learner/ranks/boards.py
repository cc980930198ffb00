"""The board and the table of several ranks in the memory of one process, for tests."""

import threading

import torch

from rollcast.learner.ranks.group import Group
from tests.processes import DEADLINE_S


class BoardInMemory(Group):
    """A board of several ranks, as one of them has it; give all ranks the same `texts`."""

    def __init__(self, rank: int, n_ranks: int, texts: dict[str, str]) -> None:
        self.rank = rank
        self.n_ranks = n_ranks
        self.texts = texts

    def note(self, key: str, text: str) -> None:
        self.texts[key] = text

    def noted(self, key: str) -> str | None:
        return self.texts.get(key)

    def told(self, name: str, rank: int, *, what: str, timeout_s: float | None = None) -> str:
        text = self.noted(f"{name}/{rank}")
        assert text is not None, f"nobody has told {what}, and {timeout_s} s would pass"
        return text


class Table:
    """A table on which the ranks of a test, each in a thread, lay what they have."""

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.rows = [torch.empty(0)] * n_ranks
        self.barrier = threading.Barrier(n_ranks)


class AtTable(BoardInMemory):
    """The table, and the board, as one rank has them."""

    def __init__(self, table: Table, rank: int, texts: dict[str, str] | None = None) -> None:
        super().__init__(rank, table.n_ranks, {} if texts is None else texts)
        self.table = table

    def gather(self, values: torch.Tensor, what: str) -> torch.Tensor:
        self.table.rows[self.rank] = values
        self.table.barrier.wait(DEADLINE_S)
        return torch.stack(self.table.rows)
