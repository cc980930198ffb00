import json
import threading
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.manifest import verify
from rollcast.learner.ranks.parts import FirstStore, PartStore, part_of
from rollcast.services.errors import ConfigurationError, RankLostError
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
def texts() -> dict[str, str]:
    """The store of the ranks."""
    return {}


@pytest.fixture
def stores(texts: dict[str, str], tmp_path: Path) -> tuple[FirstStore, PartStore]:
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


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"n_updates": "7", "digests": []}', "[" * 100_000])
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


@pytest.mark.parametrize("name", ["../own", "../rank2/own", "", "/own", "{staged}/own"])
def test_a_digest_of_a_file_of_another_rank_leaves_no_checkpoint(name: str, texts, stores):
    first, _ = stores
    staged = first.stage(7)
    (staged / "own").write_text("rank 0")
    part_of(staged, 1).mkdir()
    told = name.format(staged=staged)
    texts["checkpoint1/part/1"] = json.dumps({"digests": {told: "0" * 32}})
    with pytest.raises(OSError, match=r"rank 1: its answer has a digest of .*; expected files in rank1 only") as caught:
        first.commit(staged, INFO)
    first.abandon(staged, caught.value)
    assert first.all() == ()


def test_digests_that_a_rank_tells_are_those_of_the_files_in_its_part(stores):
    first, second = stores
    staged, part = first.stage(7), second.stage(7)
    (part / "own").write_text("rank 1")
    committing = threading.Thread(target=second.commit, args=(part, INFO), kwargs={"digests": {part / "own": "0" * 32}})
    committing.start()
    path = first.commit(staged, INFO)
    committing.join(DEADLINE_S)
    with pytest.raises(ConfigurationError, match="rank1/own has changed since it was written"):
        verify(path)


@pytest.mark.parametrize("told", [{"n_updates": 8}, {"n_updates": 7, "path": "{elsewhere}"}])
def test_a_part_is_written_nowhere_but_in_the_run(told: dict[str, object], texts, stores, tmp_path: Path):
    first, second = stores
    first.stage(7)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    texts["checkpoint1/staged/0"] = json.dumps(told).replace("{elsewhere}", str(elsewhere))
    if told["n_updates"] == 7:
        assert second.stage(7) == tmp_path / "checkpoints" / ".00000007.tmp" / "rank1"
    else:
        with pytest.raises(OSError, match="rank 0 begins the checkpoint after 8 updates, and rank 1 the one after 7"):
            second.stage(7)
    assert list(elsewhere.iterdir()) == []


def test_an_error_that_no_rank_gave_is_cut(texts, stores):
    _, second = stores
    texts["checkpoint1/staged/0"] = json.dumps({"error": "x" * 100_000})
    with pytest.raises(OSError, match=r"rank 0: x+") as caught:
        second.stage(7)
    assert len(str(caught.value)) < 2100


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
