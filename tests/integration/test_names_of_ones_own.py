"""A user's folder may hold files of any name, ours included: commands find the user's there, and rollcast its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import bare_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROLLCAST = Path(sys.executable).parent / "rollcast"

ENVIRONMENT = """
import actor, learner, proto, services
import gymnasium

# the user's own modules, in every process that makes the environment
assert [module.MINE for module in (actor, learner, proto, services)] == ["actor", "learner", "proto", "services"]

def make(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)
"""

PROGRAM = """
from rollcast.actor import EnvironmentFactory, probe_spaces
from rollcast.services import PolicySpec


def train(start_method):
    # not in the processes that it starts, which would import torch
    from rollcast.learner import Impala, ImpalaSettings, SubprocDistributedActors

    env_factory = EnvironmentFactory("myenv:make", vectorization="subprocess")
    algorithm = Impala(probe_spaces(env_factory), PolicySpec(), ImpalaSettings(), seed=0)
    with SubprocDistributedActors(
        env_factory, algorithm.policy, 8, 1, 2, start_method=start_method, envs_per_actor=2, seed=0
    ) as actors:
        for _ in range(3):
            batch, *_ = actors.collect_outputs("cpu")
            algorithm.update(batch, progress=0.0)
            actors.broadcast_updated_policy(algorithm.policy_state())
        return actors.policy_version


if __name__ == "__main__":
    print("trained:", [train(start_method) for start_method in ("spawn",)])
"""

SMALL = ("--n-actors", 1, "--envs-per-actor", 2, "--n-rollout-steps", 8, "--batch-size", 2, "--stop-return", 1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of somebody's, with an environment and modules that have the names of our folders."""
    for name in ("actor", "learner", "services", "proto"):
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    (tmp_path / "myenv.py").write_text(ENVIRONMENT)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def started(folder: Path, *command: object, path: str = ".") -> subprocess.Popen[str]:
    """Starts a command in the folder, as `PYTHONPATH=. COMMAND` does there, or without a path."""
    return subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=bare_environment() | ({"PYTHONPATH": path} if path else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Waits until a command has ended well, and returns what it printed."""
    try:
        printed, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, printed
    return printed


def test_train_and_evaluate_work_among_modules_of_the_same_names(folder: Path):
    given = ("--env-id", "myenv:make", *SMALL, "--vectorization", "subprocess", "--total-steps", 400)
    finish(started(folder, ROLLCAST, "train", *given, "--run-dir", "run"))
    finish(started(folder, ROLLCAST, "evaluate", "run", "--n-episodes", 2, "--summary-json", "figures.json"))
    assert json.loads((folder / "figures.json").read_text())["mean"] > 0


def test_a_program_trains_among_modules_of_the_same_names(folder: Path):
    """With spawn; the commands' processes are forked by a server."""
    # the first policy, and one after each of three updates
    assert "trained: [4]" in finish(started(folder, sys.executable, "train.py"))
