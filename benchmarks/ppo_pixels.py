"""Measures PPO from pixels, from the environment to the update, on the task of LeanRL's own table.

    python -m benchmarks.ppo_pixels [--device cuda] [--seconds 20] [--n-actors 8] [--n-steps 128]

Eight games of 84x84 bytes, 128 steps, four passes of four minibatches of 256 steps, the Nature CNN. The figure is the
steps of the measured seconds, which begin once the first updates have been made. The game is
synthetic: it gives frames from memory, so that no emulator is measured. `rollcast train` plays and learns, as a user
starts it. LeanRL (https://github.com/meta-pytorch/LeanRL) says 6.8k steps/s of its own PPO, compiled and with CUDA
graphs, on an H100 and with the emulator's games: the figures are near to each other in what they do, not equal.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.table import Figure, print_table

ROOT: Final = Path(__file__).parents[1]
_N_GAMES: Final = 8
_N_FRAMES: Final = 64
_EPISODE_STEPS: Final = 1_000
# In a thousand seconds no device reaches it; the limit of time ends the run.
_ENDLESS: Final = 1_000_000_000
# The updates in which caches fill and graphs are captured.
_WARM_UPDATES: Final = 4
_START_TIMEOUT_S: Final = 90.0
# SIGTERM ends a learner after the update under way.
_END_TIMEOUT_S: Final = 15.0


class SyntheticGame(gymnasium.Env[np.ndarray, int]):
    """A game of prepared frames; the reward says whether the action was the frame's own."""

    observation_space = Box(0, 255, (84, 84), np.uint8)
    action_space = Discrete(4)

    def __init__(self) -> None:
        self._frames = np.random.default_rng(0).integers(0, 255, (_N_FRAMES, 84, 84), np.uint8)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode of a thousand steps."""
        super().reset(seed=seed)
        self._step = 0
        return self._frames[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Shows the next frame."""
        reward = float(action == self._step % 4)
        self._step += 1
        return self._frames[self._step % _N_FRAMES], reward, False, self._step >= _EPISODE_STEPS, {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code of the run if it failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of training that are measured")
    parser.add_argument("--n-actors", type=int, default=8, choices=(1, 2, 4, 8), help="processes that play the games")
    parser.add_argument("--n-steps", type=int, default=128, help="T, steps of a rollout; a multiple of 4")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "rollcast.learner", "train", "--env-id", "benchmarks.ppo_pixels:SyntheticGame"),
            *("--algorithm", "ppo", "--frame-stack", "4", "--n-rollout-steps", str(options.n_steps)),
            *("--n-actors", str(options.n_actors), "--envs-per-actor", str(_N_GAMES // options.n_actors)),
            *("--batch-size", str(_N_GAMES), "--ppo.n-epochs", "4"),
            *("--ppo.minibatch-steps", str(_N_GAMES * options.n_steps // 4)),
            *("--device", options.device, "--run-dir", str(run), "--log-interval-s", "0.5"),
            *("--total-steps", str(_ENDLESS)),
        ]
        log = Path(folder) / "log"
        with (
            log.open("w") as file,
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=file) as process,
        ):
            try:
                warm_steps = _WARM_UPDATES * _N_GAMES * options.n_steps
                rate = _measured(run / "metrics.jsonl", process, options.seconds, warm_steps)
            finally:
                process.terminate()
                try:
                    process.wait(timeout=_END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        said = log.read_text(encoding="utf-8")
    if rate is None:
        print(f"{said}\nnothing was learnt in {_START_TIMEOUT_S:.0f} s", file=sys.stderr)
        return 1
    rows = [("rollcast train", options.device, Figure([rate])), ("LeanRL, by its README", "H100", "6,800")]
    print_table((f"PPO, 8 games, {options.n_steps} steps, 4 x 4 minibatches", "device", "env steps/s"), rows)
    return 0


def _measured(metrics: Path, process: "subprocess.Popen[bytes]", seconds: float, warm_steps: int) -> float | None:
    """Returns the steps/s after the first updates; None if the run ended, or made none in time."""
    began, first = time.monotonic(), None
    while process.poll() is None:
        records = _records(metrics)
        if first is None and records and records[-1][1] >= warm_steps:
            first = records[-1]
        if first is not None and records[-1][0] - first[0] >= seconds and records[-1][1] > first[1]:
            return (records[-1][1] - first[1]) / (records[-1][0] - first[0])
        if first is None and time.monotonic() - began > _START_TIMEOUT_S:
            return None
        time.sleep(0.2)
    return None


def _records(metrics: Path) -> list[tuple[float, int]]:
    """Returns the time and the steps of each record so far."""
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [(record["time"], record["env_steps"]) for record in records if "env_steps" in record]


if __name__ == "__main__":
    raise SystemExit(main())
