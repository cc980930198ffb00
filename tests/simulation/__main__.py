"""Runs random schedules of the real parts, in as many processes as there are cores, and prints what they found.

python -m tests.simulation                        a minute of every world
python -m tests.simulation --seconds 600          ten
python -m tests.simulation --seed 42              one schedule of a world again
python -m tests.simulation --every-switch         small scenarios, with each one switch that they may have
python -m tests.simulation --prove                put faults into the parts, and see that each is found
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.simulation.put_in_faults import FAULTS, PutIn

_WORLDS = (
    "found",
    "system",
    "durable",
    "in rounds",
    "evaluated",
    "replay",
    "queue",
    "credits",
    "rounds",
    "limiter",
    "subscribers",
    "bytes",
)


def start(*options: object) -> "subprocess.Popen[str]":
    """Starts a process that runs schedules; it prints a line of JSON for each world and each failure."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.worker", *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        # The order of sets of texts is a part of a schedule.
        env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
    )


def lines(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """Yields what a process prints, to its end.

    Raises:
        RuntimeError: It failed.
    """
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise RuntimeError(f"a process that runs schedules ended with status {process.returncode}; see what it printed")


def search(
    worlds: str, first_seed: int, seconds: float, n_processes: int, schedules: int | None, *, every_switch: bool
) -> int:
    """Runs schedules and prints a table; returns how many failed."""
    began = time.monotonic()
    limit: tuple[object, ...] = () if schedules is None else ("--schedules", -(-schedules // n_processes))
    limit += ("--every-switch",) if every_switch else ()
    processes = [
        start("--worlds", worlds, "--first-seed", first_seed + i, "--every", n_processes, "--seconds", seconds, *limit)
        for i in range(n_processes)
    ]
    totals: dict[str, Counter[str]] = {}
    for process in processes:
        for line in lines(process):
            if "failure" in line:
                _print_failure(line, "--every-switch " if every_switch else "")
                continue
            totals.setdefault(line.pop("world"), Counter()).update(line)
    _say(f"{'world':12} {'schedules':>10} {'steps':>12} {'failed':>7} {'a minute':>10} {'a second of a core':>19}")
    for name, total in totals.items():
        _say(_row(name, total, total["seconds"] / n_processes))
    everything = sum(totals.values(), Counter[str]())
    elapsed_s = time.monotonic() - began
    _say(_row("all", everything, elapsed_s))
    _say(f"{everything['schedules']:,} schedules in {elapsed_s:.0f} s, in {n_processes} processes")
    return everything["failures"]


def _row(name: str, total: Counter[str], seconds: float) -> str:
    """Returns a row of the table: what was run in these seconds, by all processes."""
    n = total["schedules"]
    a_minute, a_second = n / max(seconds, 1e-9) * 60, n / max(total["cpu_s"], 1e-9)
    return f"{name:12} {n:10,} {total['steps']:12,} {total['failures']:7} {a_minute:10,.0f} {a_second:19,.0f}"


def _print_failure(line: dict[str, Any], option: str) -> None:
    _say(f"{line['world']}, seed {line['seed']}, {line['steps']} steps, {line['switches']} of them switches:")
    _say(f"  {line['scenario']}\n{line['failure']}")
    _say(f'again: make simulate ARGS="{option}--worlds {line["world"]} --seed {line["seed"]}"\n')


def prove(seconds: float, names: Sequence[str], n_processes: int) -> int:
    """Puts each fault in, and prints when it was found; returns how many were not."""
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    _say(f"{'fault':62} {'world':12} {'found after':>11}")
    with ThreadPoolExecutor(n_processes) as pool:
        found = list(pool.map(lambda fault: _look_for(fault, seconds), chosen))
    return found.count(False)


def _look_for(fault: PutIn, seconds: float) -> bool:
    options = ("--worlds", fault.world, "--first-seed", 0, "--seconds", seconds, "--shrink-seconds", 0)
    said = list(lines(start(*options, "--failures", 1, "--fault", fault.name)))
    failed = next((line for line in said if "failure" in line), None)
    when = "never" if failed is None else f"{failed['after_s']:.1f} s"
    text = f"{fault.name:62} {fault.world:12} {when:>11}"
    if failed is not None:
        text += f"\n    seed {failed['seed']}: {failed['failure'].splitlines()[0][:150]}"
    _say(text)
    return failed is not None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(_WORLDS), help="names, with commas between")
    parser.add_argument("--seed", type=int, help="run this schedule only")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="the time to search, or to look for each fault")
    parser.add_argument("--schedules", type=int, help="so many of each world, if the time allows")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every-switch", action="store_true", help="small scenarios, with each one switch")
    parser.add_argument("--prove", action="store_true", help="put faults in, and see that each is found")
    parser.add_argument("--fault", action="append", default=[], help="with --prove: this one only, by its name")
    given = parser.parse_args()
    if given.prove:
        raise SystemExit(prove(given.seconds, given.fault, given.processes) > 0)
    if given.seed is not None:
        given.first_seed, given.seconds, given.processes, given.schedules = given.seed, 600.0, 1, 1
    n_failed = search(
        given.worlds,
        given.first_seed,
        given.seconds,
        given.processes,
        given.schedules,
        every_switch=given.every_switch,
    )
    raise SystemExit(n_failed > 0)


if __name__ == "__main__":
    main()
