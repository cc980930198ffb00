import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollcast.learner.writers import tracker as module
from rollcast.learner.writers.tracker import TrackerWriter
from rollcast.learner.writers.tracker_backends import make_tracker
from tests.processes import wait_until


class Recorder:
    """A tracker that keeps what it is given, and fails or hangs when it is told to."""

    def __init__(self, chosen: str | None = None) -> None:
        self.chosen = chosen
        self.started: list[str | None] = []
        self.records: list[tuple[int, Mapping[str, float]]] = []
        self.finished = 0
        self.start_fails = self.log_fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def new_identity(self) -> str | None:
        return self.chosen

    def start(self, identity: str | None) -> str:
        self.started.append(identity)
        if self.start_fails:
            raise PermissionError("no account")
        return identity or "new-id"

    def log(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        self.goes_on.wait(30)
        if self.log_fails:
            raise ConnectionError("no network")
        self.records.append((env_steps, metrics))

    def finish(self) -> None:
        self.finished += 1


def test_records_are_handed_over_in_their_order_without_what_no_number_is(tmp_path: Path):
    recorder = Recorder()
    writer = TrackerWriter("wandb", recorder, tmp_path)
    for step in range(5):
        writer.write(step, {"a": float(step), "b": float("nan"), "c": float("inf")})
    writer.close()
    writer.close()
    assert recorder.records == [(step, {"a": float(step)}) for step in range(5)]
    assert recorder.finished == 1


def test_a_later_process_goes_on_with_the_same_run(tmp_path: Path):
    first, second = Recorder(), Recorder()
    TrackerWriter("wandb", first, tmp_path).close()
    TrackerWriter("wandb", second, tmp_path).close()
    assert (first.started, second.started) == ([None], ["new-id"])
    other = Recorder()
    TrackerWriter("mlflow", other, tmp_path).close()
    assert other.started == [None], "each tracker has its own"


def test_an_identity_that_is_chosen_here_is_kept_before_the_run_begins(tmp_path: Path):
    killed, second = Recorder("chosen"), Recorder("another")
    killed.start_fails = True
    TrackerWriter("wandb", killed, tmp_path).close()
    TrackerWriter("wandb", second, tmp_path).close()
    assert (killed.started, second.started) == (["chosen"], ["chosen"])


def test_the_identity_of_a_wandb_run_is_chosen_here(tmp_path: Path):
    trackers = [make_tracker("wandb", project="mine", run_dir=tmp_path, settings={}) for _ in range(2)]
    first, second = (tracker.new_identity() for tracker in trackers)
    assert None is not first != second is not None


def test_a_tracker_that_fails_is_logged_once_a_minute_and_nothing_else_happens(tmp_path: Path, caplog):
    recorder = Recorder()
    recorder.log_fails = True
    writer = TrackerWriter("trackio", recorder, tmp_path)
    with caplog.at_level(logging.ERROR):
        for step in range(50):
            writer.write(step, {"a": 1.0})
        writer.close()
    (line,) = caplog.messages
    assert line.startswith("trackio does not take records (1 so far): ConnectionError: no network; training continues")


def test_a_tracker_that_cannot_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(module, "_START_EVERY_S", 0.0)
    recorder = Recorder()
    recorder.start_fails = True
    with caplog.at_level(logging.ERROR):
        writer = TrackerWriter("wandb", recorder, tmp_path)
        writer.write(1, {"a": 1.0})
        wait_until(lambda: len(recorder.started) == 2, "a second try")
        recorder.start_fails = False
        writer.write(2, {"a": 2.0})
        wait_until(lambda: recorder.records, "a record")
        writer.close()
    assert recorder.records == [(2, {"a": 2.0})]
    assert "PermissionError: no account" in caplog.messages[0]
    assert list(tmp_path.glob("*.run"))


def test_a_tracker_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(module, "_MAX_WAITING", 3)
    recorder = Recorder()
    recorder.goes_on.clear()
    writer = TrackerWriter("wandb", recorder, tmp_path, close_timeout_s=0.2)
    with caplog.at_level(logging.ERROR):
        for step in range(20):
            writer.write(step, {"a": 1.0})
        assert "wandb does not take records (1 so far): it is 3 records behind" in caplog.messages[0]
        writer.close()
    recorder.goes_on.set()
