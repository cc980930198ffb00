"""The board of several ranks in the memory of one process, for tests."""

from rollcast.learner.ranks.group import Group


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
