from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.runs.lock import is_locked
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, SavedPolicy


def saved_policy(**values: object) -> SavedPolicy:
    given = {
        "spec": PolicySpec(hidden_sizes=(32, 16), activation="relu"),
        "state": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)},
        "policy_version": 12,
        "env_steps": 3456,
        "mean_return": 78.9,
    }
    return SavedPolicy(**{**given, **values})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs", "one")


def files_of(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_who_begins_a_run_that_another_begins_is_told_of_the_other(run, tmp_path):
    with run.locked(), pytest.raises(ConfigurationError, match=r"another process trains in the run directory .*one;"):
        RunDirectory.create(tmp_path / "runs", "one")


def test_who_begins_a_run_that_another_begins_at_the_same_moment_is_told_of_the_other(monkeypatch, tmp_path):
    with ExitStack() as winner:

        def is_locked_before(path: Path) -> bool:
            monkeypatch.undo()
            answer = is_locked(path)
            run = RunDirectory(path)
            winner.enter_context(run.locked())
            run.write_settings({"a": 1})
            return answer

        monkeypatch.setattr("rollcast.learner.runs.directory.is_locked", is_locked_before)
        with pytest.raises(ConfigurationError, match=r"another process trains in the run directory .*one;"):
            winner.enter_context(RunDirectory.create(tmp_path / "runs", "one").locked())


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file.one cannot be made: Not a directory"):
        RunDirectory.create(tmp_path / "file", "one")


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c"])
def test_settings_that_are_none(run, text):
    (run.path / "settings.yaml").write_text(text)
    with pytest.raises(
        ConfigurationError, match=r"settings\.yaml'.*; expected the settings of a run; restore the file"
    ):
        run.read_settings()


def test_the_last_policy_takes_the_place_of_the_one_before(run):
    run.write_policy("last", saved_policy())
    run.write_policy("last", saved_policy(policy_version=13))
    assert run.read_policy("last").policy_version == 13
    assert files_of(run.path) == {"policy_last.safetensors"}


def test_what_is_not_a_run_directory(tmp_path, run):
    with pytest.raises(ConfigurationError, match=r"not a run directory: .*nowhere: it does not exist"):
        RunDirectory.open(tmp_path / "nowhere")
    with pytest.raises(
        ConfigurationError, match=r"not a run directory: .*settings.yaml, policy_last.safetensors missing"
    ):
        RunDirectory.open(run.path)
    run.write_settings({})
    with pytest.raises(ConfigurationError, match=r"one: policy_last.safetensors missing"):
        RunDirectory.open(run.path)
    run.write_policy("last", saved_policy())
    assert RunDirectory.open(run.path).read_policy("last").policy_version == 12


def test_records_of_what_a_resumed_run_goes_on_without_are_dropped(run):
    run.cut_metrics(5)
    assert not run.metrics_path.exists(), "nothing to drop"
    run.metrics_path.write_text('{"env_steps": 4}\n{"env_steps": 5}\n{"env_steps": 6}\n{"env_st')
    run.cut_metrics(5)
    assert run.metrics_path.read_text() == '{"env_steps": 4}\n{"env_steps": 5}\n'


def test_one_process_at_a_time_trains_in_it(run):
    with run.locked():
        with pytest.raises(
            ConfigurationError, match=r"another process trains in .*one; expected one process at a time; stop it"
        ):
            with RunDirectory(run.path).locked():
                pass
    with run.locked():
        pass


def test_the_files_of_its_jobs_are_there_before_a_run_and_stay_if_it_cannot_begin(tmp_path):
    log = tmp_path / "run" / "slurm" / "logs" / "learner.log"
    log.parent.mkdir(parents=True)
    log.touch()
    run = RunDirectory.create(tmp_path, "run")
    run.write_settings({"seed": 3})
    run.discard()
    assert [path.name for path in run.path.iterdir()] == ["slurm"]
    assert log.is_file()
    other = RunDirectory.create(tmp_path, "other")
    other.discard()
    assert not other.path.exists()
