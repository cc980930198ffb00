import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.tools.runs import track as module
from rollcast.tools.settings import TrackSettings


class Received:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.started: list[str | None] = []
        self.records: list[tuple[int, Mapping[str, float]]] = []
        self.finished = 0

    def new_identity(self) -> None:
        return None

    def start(self, identity: str | None) -> str:
        self.started.append(identity)
        return "given"

    def log(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        if "fails" in metrics:
            raise ConnectionError("no network")
        self.records.append((env_steps, metrics))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "settings.yaml").write_text("algorithm: ppo\ntrack_project: robots\n")
    return tmp_path


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Received, dict[str, object]]]:
    made: list[tuple[Received, dict[str, object]]] = []

    def make(name: str, **arguments: object) -> Received:
        made.append((Received(), {"name": name, **arguments}))
        return made[-1][0]

    monkeypatch.setattr(module, "make_tracker", make)
    return made


def write_records(run: Path, *records: dict[str, object]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_every_record_and_the_settings_are_sent(run: Path, received):
    write_records(
        run,
        {"time": 1.0, "env_steps": 10, "train/mean_return": 3.5, "loss": float("nan"), "note": "text"},
        {"time": 2.0, "env_steps": 20, "train/mean_return": 4.5},
    )
    out = io.StringIO()
    assert module.track(TrackSettings(run=run, to="wandb"), out) == 0
    ((tracker, arguments),) = received
    assert tracker.records == [(10, {"train/mean_return": 3.5}), (20, {"train/mean_return": 4.5})]
    assert tracker.finished == 1
    assert arguments["project"] == "robots"
    assert arguments["settings"] == {"algorithm": "ppo", "track_project": "robots"}
    assert out.getvalue() == f"2 records of {run} are in wandb, project robots\n"


def test_a_run_that_the_tracker_has_is_continued(run: Path, received):
    for _ in range(2):
        module.track(TrackSettings(run=run, to="mlflow", project="mine"), io.StringIO())
    assert [tracker.started for tracker, _ in received] == [[None], ["given"]]
    assert received[1][1]["project"] == "mine"


def test_the_tracker_is_that_of_the_run_unless_another_is_named(run: Path, received):
    with pytest.raises(ConfigurationError, match="expected one of wandb, trackio, mlflow"):
        module.track(TrackSettings(run=run), io.StringIO())
    (run / "settings.yaml").write_text("algorithm: ppo\ntrack: trackio\n")
    module.track(TrackSettings(run=run), io.StringIO())
    assert (received[0][1]["name"], received[0][1]["project"]) == ("trackio", "rollcast")


def test_what_is_no_run_and_what_the_tracker_raises_is_told(run: Path, received, tmp_path_factory):
    with pytest.raises(ConfigurationError, match="is not a run"):
        module.track(TrackSettings(run=tmp_path_factory.mktemp("other"), to="wandb"), io.StringIO())
    write_records(run, {"time": 1.0, "env_steps": 10, "a": 1}, {"time": 2.0, "env_steps": 20, "fails": 1})
    with pytest.raises(RollcastError, match=r"wandb takes no records \(1 so far\): ConnectionError: no network"):
        module.track(TrackSettings(run=run, to="wandb"), io.StringIO())
