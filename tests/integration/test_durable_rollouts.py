"""A learner that is killed again and again: what it acknowledged is learnt from, once, and in its order."""

import contextlib
import json
import random
import signal
import subprocess
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from learner.actor_registry import derive_seed
from services.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.chaos.acting import read_acknowledgements
from tests.chaos.bookkeeping import BookkeepingEnv
from tests.chaos.durable_learner import read_books
from tests.processes import free_port, running, wait_until

pytestmark = pytest.mark.slow

N_ROLLOUT_STEPS = 8
ENVS = 2
N_KILLS = 1
OPTIONS = {
    # a batch is one rollout and a half of another
    "impala": ("--batch-size", 3),
    "dqn": (
        *("--batch-size", 8, "--dqn.learning-rate", 1e-9),
        *("--replay.n-step", 1, "--replay.min-size", 200, "--replay.capacity", 100_000),
    ),
}
ENVIRONMENT = ("--env-id", "tests.chaos.bookkeeping:BookkeepingEnv")


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_what_was_acknowledged_is_learnt_from_once(algorithm: str, tmp_path: Path):
    rng, address, run_dir = random.Random(algorithm), f"127.0.0.1:{free_port()}", tmp_path / "run"
    learner = ("tests.chaos.durable_learner", "learner", "--durable", "--address", address, *ENVIRONMENT)
    learner += ("--algorithm", algorithm, *OPTIONS[algorithm], "--n-rollout-steps", N_ROLLOUT_STEPS)
    learner += ("--run-dir", run_dir, "--resume", "auto", "--stop-return", 1e9, "--checkpoint-interval-s", 0.5)
    learner += ("--updates-per-broadcast", 5, "--torch-threads", 1, "--hidden-sizes", 8)
    files = {name: tmp_path / name for name in ("one", "two")}

    def acknowledged() -> dict[str, int]:
        return {name: read_acknowledgements(path).get(1, 0) for name, path in files.items()}

    def start_actor(name: str) -> subprocess.Popen[str]:
        options = ("--learner-address", address, "--actor-id", name, "--envs-per-actor", ENVS, *ENVIRONMENT)
        kwargs = ("--env-kwargs", json.dumps({"step_s": 0.0005}))
        return stack.enter_context(running("tests.chaos.acting", files[name], *options, *kwargs))

    with contextlib.ExitStack() as stack:
        actors = [start_actor(name) for name in files]
        for kill in range(N_KILLS + 1):
            before = acknowledged()
            with running(*learner) as process:
                wait_until(
                    lambda before=before: all(now > before[name] + 20 for name, now in acknowledged().items()),
                    f"rollouts of both actors, life {kill}",
                    60,
                )
                threading.Event().wait(rng.uniform(0.0, 0.7))  # in the middle of a checkpoint, or between two
                if kill < N_KILLS:
                    process.send_signal(signal.SIGKILL)
                    assert process.wait(5) == -signal.SIGKILL
                    continue
                for actor in actors:
                    actor.kill()
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0, process.stdout and process.stdout.read()
    env = BookkeepingEnv()
    spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=env.observation_space, action=gymnasium.spaces.Discrete(4))}
    steps, n_logged = read_books(run_dir, spaces)
    checkpoint = max(run_dir.glob("checkpoints/[0-9]*"), key=lambda path: int(path.name))
    known = json.loads((checkpoint / "training.json").read_text())["actors"]["actors"]
    assert {name: actor["incarnation"] for name, actor in known.items()} == {"one": 1, "two": 1}
    for name, n_rollouts in acknowledged().items():
        for seed in np.random.SeedSequence(derive_seed(0, 0, known[name]["slot"], 1)).generate_state(ENVS).tolist():
            totals = steps[steps[:, 0] == seed][:, 1]
            np.testing.assert_array_equal(totals, np.arange(len(totals)), f"{name}: lost, doubled, or out of order")
            assert len(totals) >= n_rollouts * N_ROLLOUT_STEPS, f"{name}: acknowledged, and not there"
    assert n_logged < len(steps)
