"""`rollcast record`, and the readers of its files: `rollcast train --initial-data`, and plain protobuf."""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcast.learner.commands.record import record as record_here
from rollcast.learner.settings.record import RecordSettings
from rollcast.services.rollouts.recording import read_rollouts
from tests.processes import DEADLINE_S, ROOT, completed, ended, environment, refused, rollcast, running, wait_until
from tests.rollouts import header_of

pytestmark = pytest.mark.slow


def record(path: Path, *arguments: object) -> dict[str, object]:
    """Records and returns the summary."""
    summary = path.with_suffix(".json")
    completed("record", "--output", path, "--summary-json", summary, "--overwrite", *arguments)
    return json.loads(summary.read_text())


def recorded(folder: Path, **settings: Any) -> str:
    """Records a rollout in this process, and returns what is printed."""
    output = io.StringIO()
    record_here(RecordSettings(output=folder / "demo", rollouts=1, n_rollout_steps=4, **settings), output)
    return output.getvalue()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "demo.rollouts"
    record(path, "--rollouts", 20, "--n-rollout-steps", 16)
    return path


def test_summary_describes_the_file(recording: Path):
    summary = json.loads(recording.with_suffix(".json").read_text())
    rollouts = list(read_rollouts(recording))
    returns = [episode.episode_return for rollout in rollouts for episode in rollout.episodes]
    assert summary == {
        "rollouts": 20,
        "env_steps": sum(rollout.n_env_steps for rollout in rollouts),
        "episodes": len(returns),
        "mean_return": pytest.approx(sum(returns) / len(returns)),
        "n_bytes": recording.stat().st_size,
        "path": str(recording),
    }
    header = header_of(recording)
    assert (header.env_id, header.played_by, header.n_rollout_steps, header.n_envs) == ("CartPole-v1", "random", 16, 8)
    assert [rollout.sequence for rollout in rollouts] == list(range(1, 21))


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        ("Discrete(3, start=2)", " train --algorithm sac --env-id any_actions:Flat --initial-data "),
        ("Box(-2.0, 5.0, (2, 3))", " train --algorithm sac --env-id any_actions:Flat --initial-data "),
        ("Box(-np.inf, np.inf, (2,))", "do not support the action space Box(-inf, inf"),
        ("MultiDiscrete([3, 2])", "do not support the action space MultiDiscrete([3 2])"),
        ("MultiBinary(4)", "do not support the action space MultiBinary(4)"),
    ],
)
def test_the_summary_advises_only_an_algorithm_that_supports_the_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, advice: str
):
    (tmp_path / "any_actions.py").write_text(
        "import numpy as np\n"
        "from gymnasium import Env\n"
        "from gymnasium.spaces import *\n"
        "class Flat(Env):\n"
        f"    observation_space, action_space = Discrete(2), {action}\n"
        "    def reset(self, **_): return 0, {}\n"
        "    def step(self, action): return 1, 0.0, True, False, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "any_actions", raising=False)
    assert advice in recorded(tmp_path, env_id="any_actions:Flat")


def test_the_summary_advises_the_policies_of_the_agents_that_were_recorded(tmp_path: Path):
    said = recorded(tmp_path, env_id="mpe2.simple_spread_v3:parallel_env", agent_policies="separate")
    assert " --env-id mpe2.simple_spread_v3:parallel_env --agent-policies separate --initial-data " in said


def test_same_seed_gives_the_same_file(recording: Path, tmp_path: Path):
    for name, seed in (("same", 0), ("other", 1)):
        record(tmp_path / name, "--rollouts", 20, "--n-rollout-steps", 16, "--seed", seed)
    assert (tmp_path / "same").read_bytes() == recording.read_bytes() != (tmp_path / "other").read_bytes()


def test_policy_of_a_run_that_began_with_a_recording_is_recorded_deterministically(recording: Path, tmp_path: Path):
    run = tmp_path / "run"
    learning = ("--algorithm", "dqn", "--initial-data", recording, "--total-steps", 600, "--stop-return", 1e9)
    small = ("--n-rollout-steps", 16, "--hidden-sizes", 16, "--actor-kind", "sequential")
    done = completed("train", *learning, *small, "--run-dir", run)
    n_episodes = json.loads(recording.with_suffix(".json").read_text())["episodes"]
    assert f"20 rollouts, {n_episodes} episodes, from {recording}; it can be sampled at once" in done.stdout
    summary = record(tmp_path / "demo", "--policy", run, "--steps", 1000, "--deterministic", "--n-rollout-steps", 20)
    assert 1000 <= summary["env_steps"] < 1000 + 20 * 8
    assert header_of(tmp_path / "demo").played_by.startswith(f"{run}, best, version ")
    assert next(read_rollouts(tmp_path / "demo")).policy_version > 0


@pytest.mark.parametrize(("number", "returncode"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_keeps_whole_rollouts_and_reports_them(tmp_path: Path, number: int, returncode: int):
    path = tmp_path / "demo"
    with running("learner", "record", "--output", path, "--rollouts", 10**9) as process:
        wait_until(lambda: any(file.stat().st_size > 10**6 for file in tmp_path.glob(".demo.*.partial")), "rollouts")
        assert not path.exists()
        process.send_signal(number)
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == returncode
    n_rollouts = sum(1 for _ in read_rollouts(path))
    assert n_rollouts > 0
    assert f"by {signal.Signals(number).name}, before 1,000,000,000 rollouts: complete rollouts are kept" in said
    assert re.search(rf"^rollouts +{n_rollouts:,} of 32 steps", said, re.MULTILINE)
    assert [file.name for file in tmp_path.iterdir()] == ["demo"]


def test_recorder_started_with_sigint_ignored_keeps_ignoring_it(tmp_path: Path):
    options = ["record", "--output", str(tmp_path / "demo"), "--rollouts", str(10**9)]
    # as a shell does for what a script starts in the background
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "rollcast.learner", *options]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: any(file.stat().st_size > 10**5 for file in tmp_path.glob(".demo.*.partial")), "rollouts")
        process.send_signal(signal.SIGINT)
        assert ended(process, signal.SIGTERM) == 0, "130 would be Ctrl-C's"


def test_partial_file_of_killed_recorder_can_be_read(tmp_path: Path):
    with running("learner", "record", "--output", tmp_path / "demo", "--rollouts", 10**9) as process:
        wait_until(lambda: any(file.stat().st_size > 10**5 for file in tmp_path.glob(".demo.*.partial")), "rollouts")
        process.kill()
        ended(process)
    (partial,) = tmp_path.iterdir()
    assert next(read_rollouts(partial)).sequence == 1


def test_failing_environment_keeps_whole_rollouts(tmp_path: Path):
    done = rollcast(
        *("record", "--output", tmp_path / "demo", "--rollouts", 100, "--n-rollout-steps", 4),
        *("--env-id", "tests.environments:FailingEnv", "--env-kwargs", '{"fail_at": 10}'),
    )
    assert done.returncode == 1
    assert "the simulator has lost its licence" in done.stderr
    assert "by EnvironmentFailedError, before 100 rollouts: complete rollouts are kept" in done.stdout
    assert len(list(read_rollouts(tmp_path / "demo"))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x"], "rollouts is None and steps is None; expected exactly one"),
        (["--rollouts", "1"], "--output: it is not given"),
        (["--output", "x", "--rollouts", "1", "--policy", "nowhere"], "not a run directory: nowhere"),
        (["--output", "no/such/folder/x", "--rollouts", "1"], "no/such/folder/x cannot be written"),
        (["--output", "README.md", "--rollouts", "1"], "README.md exists; expected a new file"),
    ],
)
def test_error_of_wrong_setting_has_name_value_and_advice(arguments: list[str], message: str):
    said = refused("record", *arguments)
    assert message in said
