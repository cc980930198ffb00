"""The doctor of a run that trains, the records of real runs, and those of a folder."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rollcast.learner.health.doctor import LearningDoctor, read_run
from rollcast.learner.health.rules import RunRecords, find
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.unit.learner.health.test_rules import HEALTHY, SETTINGS, SPACES, records

# Records of runs of one to three minutes, with some of their tags and four digits of each value; the first line has the
# settings. The names of those of healthy settings begin with the recipe, or with the algorithm whose defaults they are.
RUNS = Path(__file__).with_name("runs")
# Runs that were spoilt, and what has to be found in each.
SPOILT = {
    "ppo-learning-rate-1": {"returns-fell", "entropy-gone"},
    "ppo-learning-rate-0": {"policy-random", "explained-variance"},
    "ppo-rewards-times-10000": {"reward-scale"},
    "ppo-rewards-divided-by-10000": {"reward-scale"},
    "ppo-no-rewards": {"returns-equal", "explained-variance"},
    "ppo-discount-0": {"returns-fell", "explained-variance"},
    "ppo-entropy-cost-10": {"policy-random"},
    "ppo-learning-rate-0.05-20-epochs": {"policy-jumps"},
    "ppo-observations-times-1000": {"observation-scale"},
    "impala-pendulum-defaults": {"explained-variance", "critic-clipped"},
    "impala-learning-rate-0.3": {"returns-fell", "entropy-gone"},
    "dqn-learning-rate-1": {"returns-fell"},
    "dqn-actors-too-fast": {"replay-ratio"},
    "sac-rewards-times-10000": {"reward-scale"},
}
# Settings that look wrong, and are not: these learn.
HARMLESS = ("ppo-60-epochs", "ppo-max-grad-norm-0.0001", "dqn-max-grad-norm-0.001")
WELL = sorted({path.stem for path in RUNS.glob("*.jsonl")} - set(SPOILT))


def recorded(name: str) -> RunRecords:
    settings, *rows = map(json.loads, (RUNS / f"{name}.jsonl").read_text().splitlines())
    if settings["env_id"] is None:
        # one that gymnasium does not know
        return RunRecords(records=rows, settings=settings)
    env = gymnasium.make(settings["env_id"])
    observation = env.observation_space
    if name == "ppo-observations-times-1000":
        observation = gymnasium.spaces.Box(-1e4, 1e4, (4,), np.float32)
    spaces = {"0": SubstepSpaces(observation=observation, action=env.action_space)}
    env.close()
    return RunRecords(records=rows, settings=settings, spaces=spaces)


@pytest.mark.parametrize("name", SPOILT)
def test_runs_that_were_spoilt_are_found_out(name: str):
    assert {finding.rule for finding in find(recorded(name))} == SPOILT[name]


@pytest.mark.parametrize("name", WELL)
def test_healthy_runs_have_no_findings_at_any_time(name: str):
    run = recorded(name)
    for n in range(1, len(run.records) + 1):
        so_far = RunRecords(records=run.records[:n], settings=run.settings, spaces=run.spaces)
        assert find(so_far) == [], f"after {n} records"


def test_there_are_ten_of_each_and_the_harmless_are_among_them():
    assert len(SPOILT) >= 10
    assert len(WELL) >= 10 + len(HARMLESS)
    assert set(HARMLESS) < set(WELL)


def test_the_doctor_of_a_run_says_what_its_records_say_also_when_it_is_resumed():
    spoilt = records(**HEALTHY | {"ppo__critic_grad_norm": 12.0})
    nested = {"ppo": {name.removeprefix("ppo."): SETTINGS[name] for name in SETTINGS if name.startswith("ppo.")}}
    settings = {name: SETTINGS[name] for name in ("algorithm", "total_steps", "normalize_observations")} | nested
    doctor = LearningDoctor(settings, SPACES)
    assert doctor.findings() == ()
    for record in spoilt:
        doctor.write(record["env_steps"], {tag: value for tag, value in record.items() if tag != "env_steps"})
    assert [finding.rule for finding in doctor.findings()] == ["critic-clipped"]
    doctor.close()
    resumed = LearningDoctor(settings, SPACES, spoilt)
    assert resumed.findings() == doctor.findings()


def test_of_a_long_run_the_first_records_and_some_of_the_others_are_kept():
    doctor = LearningDoctor({"algorithm": "ppo"}, None)
    n = 20_000
    for i in range(n):
        # The first record alone has this return; all later ones are far below, and their number does not hide it.
        values = {"train/updates": i, "train/episodes": 100 * i, "train/mean_return": -50.0}
        first = {"episode_return/mean": 20.0, "episode_return/std": 1.0, "episode_count/epoch": 100} if i == 0 else {}
        doctor.write(i, values | first)
    (finding,) = doctor.findings()
    assert finding.rule == "returns-fell"
    assert "was 20.0 in the first 100 episodes" in finding.what


def test_a_folder_has_records_settings_and_perhaps_a_policy(tmp_path: Path):
    run = RunDirectory.create(tmp_path, "run")
    run.write_settings({"algorithm": "ppo", "ppo": {"discount": 0.9}})
    assert (read_run(run).episodes, read_run(run).spaces) == (0, None)
    run.metrics_path.write_text('{"time": 1.0, "env_steps": 8, "train/episodes": 12}\n{"time": 2.0, "env_st')
    assert read_run(run).episodes == 12
    assert read_run(run).setting("discount") == 0.9
    with pytest.raises(ConfigurationError, match="is not a run"):
        read_run(RunDirectory(tmp_path / "nowhere"))
