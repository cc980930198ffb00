"""Measures resident memory while `rollcast train` runs; it should not grow.

    python -m benchmarks.memory [--minutes 10] [-- --env-id ... --n-actors 2]

Trains on CartPole and never stops at a return. Prints the resident memory of the learner and its actors every 30 s, and
the slope of a line through the second half, after everything that is allocated once. Options after `--` go to
`rollcast train`.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.table import Figure, print_table

_MIB = 1 << 20
_STOP_TIMEOUT_S = 20.0


def resident_mib(learner: psutil.Process) -> tuple[float, float, int]:
    """Returns the MiB of the learner, the MiB of its actors together, and the number of actors."""
    actors = [
        child.memory_info().rss / _MIB
        for child in learner.children(recursive=True)
        if not any(word in " ".join(child.cmdline()) for word in ("resource_tracker", "resource-tracker"))
    ]
    return learner.memory_info().rss / _MIB, sum(actors), len(actors)


def slope(minutes: list[float], mib: list[float]) -> float:
    """Returns the slope of a least-squares line through the second half, in MiB per minute."""
    half = len(minutes) // 2
    return float(np.polyfit(minutes[half:], mib[half:], 1)[0])


def main() -> None:
    """Prints the table as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--interval-s", type=float, default=30.0, help="seconds between two lines")
    parser.add_argument(
        "train_options",
        nargs="*",
        default=["--algorithm", "impala"],
        help="options of `rollcast train`, after -- (default: --algorithm impala)",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # training ends with this process
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rollcast.learner", "train", "--run-dir", str(Path(folder) / "run")]
        command += ["--stop-return", "1e9", "--total-steps", str(10**12), *options.train_options]
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            samples = watch(psutil.Process(training.pid), options.minutes, options.interval_s)
        finally:
            training.send_signal(signal.SIGINT)
            try:
                training.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                training.kill()
    minutes, learner, actors = (list(column) for column in zip(*samples, strict=True))
    half = len(minutes) // 2
    print()
    print_table(
        ("process", "at half time", "at the end", "slope of the second half"),
        [
            (
                name,
                *(Figure([each], ".1f", "MiB") for each in (mib[half], mib[-1])),
                Figure([slope(minutes, mib)], "+.3f", "MiB/min"),
            )
            for name, mib in (("learner", learner), ("actors together", actors))
        ],
    )


def watch(learner: psutil.Process, minutes: float, interval_s: float) -> list[tuple[float, float, float]]:
    """Takes and prints samples: `(minutes, MiB of the learner, MiB of its actors)`."""
    samples = []
    started = time.monotonic()
    while (elapsed := (time.monotonic() - started) / 60) < minutes:
        time.sleep(min(interval_s, 60 * (minutes - elapsed)))
        if learner.status() == psutil.STATUS_ZOMBIE:
            raise SystemExit("training ended; expected it to go on until it is interrupted; see what it said above")
        learner_mib, actors_mib, n_children = resident_mib(learner)
        samples.append(((time.monotonic() - started) / 60, learner_mib, actors_mib))
        print(
            f"{samples[-1][0]:5.1f} min   learner {learner_mib:7.1f} MiB   {n_children} children {actors_mib:7.1f} MiB",
            flush=True,
        )
    return samples


if __name__ == "__main__":
    main()
