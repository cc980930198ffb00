"""Checkpoints on a disk that hangs, in runs of sequential actors."""

import threading
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.training import checkpointing, run_keeper, trainer
from rollcast.learner.writers.json_lines import JsonLinesWriter
from rollcast.services.errors import NotReadyError
from tests.processes import DEADLINE_S
from tests.unit.learner.checkpoints.resumable_runs import settings_for, train

pytestmark = pytest.mark.slow


class HangingDisk:
    """Commits wait until it is released; the first few do not. Who waits for one that does waits for a moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, n_quick: int) -> None:
        self.released, self.hangs = threading.Event(), threading.Event()
        self._n_quick = n_quick
        commit = CheckpointStore.commit

        def hang(store: CheckpointStore, *arguments: object, **options: object) -> Path:
            self._n_quick -= 1
            if self._n_quick < 0:
                monkeypatch.setattr(run_keeper, "_DUE_TIMEOUT_S", 0.05)
                monkeypatch.setattr(trainer, "WRITE_TIMEOUT_S", 0.05)
                self.hangs.set()
                assert self.released.wait(60)
            return commit(store, *arguments, **options)

        monkeypatch.setattr(CheckpointStore, "commit", hang)


def names(run_dir: Path) -> list[str]:
    return [path.name for path in CheckpointStore(run_dir / "checkpoints", keep=1).all()]


def join_writer() -> None:
    for thread in threading.enumerate():
        if thread.name == "rollcast-checkpoint":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def test_what_is_due_while_one_is_being_written_is_left_out(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("rollcast.learner.waiting.FIRST_S", 0.01)
    disk = HangingDisk(monkeypatch, n_quick=1)
    write = JsonLinesWriter.write

    def release_late(writer, env_steps, metrics):
        write(writer, env_steps, metrics)
        if env_steps >= 16 * 32:  # after 16 updates
            monkeypatch.undo()
            disk.released.set()

    monkeypatch.setattr(JsonLinesWriter, "write", release_late)
    options = ("--keep-checkpoints", "9", "--log-interval-s", "1e-9")
    train(settings_for(tmp_path / "run", "impala", *options))
    assert names(tmp_path / "run")[:2] == ["00000005", "00000010"]
    assert "00000015" not in names(tmp_path / "run")
    assert int(names(tmp_path / "run")[-1]) > 15
    assert "the checkpoint after 10 updates to be written by the thread rollcast-checkpoint" in caplog.text
    assert "skipping the one that is due" in caplog.text


def test_the_end_of_training_waits_no_longer_than_its_deadline(tmp_path, monkeypatch):
    disk = HangingDisk(monkeypatch, n_quick=1)
    with pytest.raises(NotReadyError, match=r"no checkpoint can begin: .* after 10 updates .* disk hangs"):
        train(settings_for(tmp_path / "run", "impala"))
    assert disk.hangs.is_set()
    assert names(tmp_path / "run") == ["00000005"]
    disk.released.set()
    join_writer()


def test_the_last_checkpoint_has_a_deadline_too(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "WRITE_TIMEOUT_S", 0.05)
    disk = HangingDisk(monkeypatch, n_quick=0)
    options = ("--checkpoint-interval-updates", "1000")
    with pytest.raises(NotReadyError, match=r"waited 0 s for the checkpoint after \d+ updates .* previous checkpoint"):
        train(settings_for(tmp_path / "run", "impala", *options))
    disk.released.set()
    join_writer()


def test_an_unforeseen_error_reaches_whoever_waits(tmp_path, monkeypatch):
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    monkeypatch.setattr(CheckpointStore, "commit", fail)
    with pytest.raises(ZeroDivisionError, match="unforeseen"):
        train(settings_for(tmp_path / "run", "impala"))


def test_nothing_that_a_checkpoint_is_written_from_outlives_training(tmp_path, monkeypatch):
    """A tensor that is freed in a thread while the interpreter ends aborts the process."""
    is_over, came_late = threading.Event(), []

    class Tensor:
        def __del__(self) -> None:
            came_late.append(is_over.wait(0.2))

    begin = checkpointing.TrainingCheckpoints.begin

    def begin_with_tensor(self, *, then, **options):
        tensor = Tensor()

        def then_with_tensor() -> None:
            then()
            assert tensor

        return begin(self, then=then_with_tensor, **options)

    monkeypatch.setattr(checkpointing.TrainingCheckpoints, "begin", begin_with_tensor)
    train(settings_for(tmp_path / "run", "impala"))
    is_over.set()
    assert came_late
    assert not any(came_late)
