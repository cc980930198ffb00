"""Measures `rollcast train` with each algorithm: environment steps a second beside those of plain IMPALA.

    python -m benchmarks.algorithms [--seconds 10] [--rounds 3]

Two actors of 64 CartPoles on this machine, T=64, B=128. The runs take turns; a ratio is that of two neighbours.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import Figure, print_table, ratio
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.status.status import LearnerStatus

_ROOT = Path(__file__).resolve().parent.parent
_START_TIMEOUT_S = 120.0
_WARM_UPDATES = 3
_COMMON = (
    *("--n-actors", "2", "--envs-per-actor", "64", "--n-rollout-steps", "64", "--batch-size", "128"),
    *("--torch-threads", "1", "--stop-return", "1e9", "--total-steps", "1000000000"),
)
_IMPALA = ("--algorithm", "impala")
_PASSES = ("--{0}.n-epochs", "4", "--{0}.minibatch-steps", "2048")
_PPO = ("--algorithm", "ppo", *(option.format("ppo") for option in _PASSES))
_APPO = ("--algorithm", "appo", *(option.format("appo") for option in _PASSES))
# By the name of the row: further options, and the ratio to IMPALA that is the target.
_RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "PPO, 4 epochs, minibatches of 2,048": (_PPO, "0.35"),
    "the same with two torch threads, for actors wait meanwhile": ((*_PPO, "--torch-threads", "2"), "0.35"),
    "APPO, 4 epochs, minibatches of 2,048": (_APPO, ""),
    "IMPALA with an LSTM of 64": ((*_IMPALA, "--recurrence", "lstm"), "0.20"),
    "IMPALA, 10 episodes evaluated every 2 seconds": (
        (*_IMPALA, "--eval-interval-s", "2", "--eval-episodes", "10"),
        "0.95",
    ),
}


def measure(options: tuple[str, ...], seconds: float) -> float:
    """Returns the environment steps a second of a run, between its third update and so many seconds later."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/learner"
        command = [sys.executable, "-m", "rollcast.learner", "train", *_COMMON, *options]
        process = subprocess.Popen(
            [*command, "--address", address, "--run-dir", f"{folder}/run"],
            cwd=_ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("ROLLCAST_")},
            stdout=subprocess.DEVNULL,
        )
        try:
            with LearnerClient(address) as client:
                first = _status_after(client, _WARM_UPDATES)
                began = time.monotonic()
                time.sleep(seconds)
                last = client.status()
                return (last.env_steps - first.env_steps) / (time.monotonic() - began)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _status_after(client: LearnerClient, n_updates: int) -> LearnerStatus:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            status = client.status()
            if status.updates >= n_updates:
                return status
        except RollcastError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"no {n_updates} updates within {_START_TIMEOUT_S:.0f} s")


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians are printed")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in _RUNS}
    beside: dict[str, list[float]] = {name: [] for name in _RUNS}
    for _ in range(options.rounds):
        for name, (arguments, _target) in _RUNS.items():
            beside[name].append(measure(_IMPALA, options.seconds))
            rates[name].append(measure(arguments, options.seconds))
    impala = Figure([rate for rates_of_impala in beside.values() for rate in rates_of_impala])
    rows: list[tuple[str | Figure, ...]] = [("IMPALA", impala, "1.00", "")]
    rows += [
        (name, Figure(rates[name]), ratio(rates[name], beside[name]), target) for name, (_, target) in _RUNS.items()
    ]
    print_table(("run", "env steps/s", "of IMPALA", "target"), rows)


if __name__ == "__main__":
    main()
