import threading
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.manifest import verify
from rollcast.learner.ranks.parts import FirstStore, PartStore, part_of
from rollcast.services.errors import RankLostError
from tests.processes import DEADLINE_S, wait_until
from tests.unit.learner.checkpoints.test_store import info
from tests.unit.learner.ranks.boards import BoardInMemory


class Waiting(BoardInMemory):
    """A board on which a rank waits for what another has not told yet."""

    def told(self, name: str, rank: int, *, what: str, timeout_s: float | None = None) -> str:
        wait_until(lambda: self.noted(f"{name}/{rank}") is not None, what)
        return super().told(name, rank, what=what)


INFO = info(7)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[FirstStore, PartStore]:
    texts: dict[str, str] = {}
    first = FirstStore(tmp_path / "checkpoints", keep=2, group=Waiting(0, 2, texts))
    first.tidy()
    return first, PartStore(tmp_path / "checkpoints", group=Waiting(1, 2, texts))


def test_a_checkpoint_is_there_once_every_rank_has_written_its_part(stores):
    first, second = stores
    for _ in range(2):
        staged, part = first.stage(7), second.stage(7)
        assert part == part_of(staged, 1)
        (staged / "own").write_text("rank 0")
        (part / "own").write_text("rank 1")
        found: list[Path] = []
        committing = threading.Thread(target=lambda own=staged, to=found: to.append(first.commit(own, INFO)))
        committing.start()
        assert not found, "rank 1 has not written its part"
        path = second.commit(part, INFO)
        committing.join(DEADLINE_S)
        assert path == part_of(found[0], 1)
        assert (path / "own").read_text() == "rank 1"
        assert verify(found[0]) == INFO
        assert first.newest() == (found[0], INFO)


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"path": 7, "digests": []}', "[" * 100_000])
def test_an_answer_that_no_rank_gave_leaves_no_checkpoint(answer: str, tmp_path: Path):
    texts = {"checkpoint1/part/1": answer, "checkpoint1/staged/0": answer}
    first = FirstStore(tmp_path / "checkpoints", keep=2, group=Waiting(0, 2, texts))
    first.tidy()
    staged = first.stage(7)
    with pytest.raises((OSError, RankLostError), match="rank 1") as caught:
        first.commit(staged, INFO)
    first.abandon(staged, caught.value)
    assert first.all() == ()
    texts["checkpoint1/staged/0"] = answer
    with pytest.raises((OSError, RankLostError), match="rank 0"):
        PartStore(tmp_path / "checkpoints", group=Waiting(1, 2, texts)).stage(7)


def test_a_part_that_cannot_be_written_leaves_no_checkpoint(stores):
    first, second = stores
    staged, part = first.stage(7), second.stage(7)
    second.abandon(part, OSError("the disk is full"))
    with pytest.raises(OSError, match="rank 1: the disk is full") as caught:
        first.commit(staged, INFO)
    first.abandon(staged, caught.value)
    assert first.all() == ()
    assert not staged.exists()
    # and the next is one again
    staged, part = first.stage(8), second.stage(8)
    first.abandon(staged, OSError("no room here"))
    with pytest.raises(OSError, match="rank 0: no room here"):
        second.commit(part, INFO)


def test_a_checkpoint_that_rank_0_cannot_begin_is_none_for_the_others(stores, tmp_path: Path):
    first, second = stores
    (tmp_path / "checkpoints" / ".00000007.tmp").touch()
    with pytest.raises(NotADirectoryError):
        first.stage(7)
    with pytest.raises(OSError, match=r"rank 0: .*Not a directory"):
        second.stage(7)


def test_ranks_that_share_no_folder_are_told_so(stores):
    first, second = stores
    staged = first.stage(7)
    staged.rmdir()
    with pytest.raises(OSError, match="expected the run's folder on a file system that all ranks share"):
        second.stage(7)
