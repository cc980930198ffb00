"""Runs schedules in a process of its own, and prints a line of JSON for each world and each failure."""

import argparse
import gc
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.simulation.instrument import instrument
from tests.simulation.put_in_faults import find
from tests.simulation.shrink import Outcome, shrink
from tests.simulation.worlds import World, worlds

# Python's clock, before the simulator has one.
_clock = time.monotonic
_cpu_clock = time.process_time
# Schedules after which circles of dead tasks are collected.
_COLLECT_EVERY = 50


def main() -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--worlds", required=True, help="names, with commas between; NAME:SCHEDULES:FIRST SEED for other numbers"
    )
    parser.add_argument("--first-seed", type=int, required=True)
    parser.add_argument("--every", type=int, default=1, help="the distance from one seed to the next")
    parser.add_argument("--schedules", type=int, default=sys.maxsize, help="of each world")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--shrink-seconds", type=float, default=30.0)
    parser.add_argument("--failures", type=int, default=sys.maxsize, help="end after so many of a world")
    parser.add_argument("--every-switch", action="store_true", help="of small scenarios, in the place of seeds")
    parser.add_argument("--fault", default="", help="put this one in")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    fault = find(given.fault) if given.fault else None
    instrument(None if fault is None else (fault.path, fault.right, fault.wrong))
    known = worlds()
    ends_at = _clock() + given.seconds
    chosen = [_asked(text, given) for text in given.worlds.split(",")]
    gc.collect()
    gc.freeze()
    gc.disable()
    whole = sum(known[name].share for name, _ in chosen)
    for name, of_world in chosen:
        left_s = ends_at - _clock()
        until = _clock() + left_s * known[name].share / whole
        whole -= known[name].share
        _run_world(name, known[name], of_world, until)


def _asked(text: str, given: argparse.Namespace) -> tuple[str, argparse.Namespace]:
    """Returns the name of a world, and what is asked of it."""
    name, *numbers = text.split(":")
    own = dict(zip(("schedules", "first_seed"), map(int, numbers), strict=False))
    return name, argparse.Namespace(**(vars(given) | own))


def _run_world(name: str, world: World, given: Any, until: float) -> None:
    began, cpu_began, n, n_steps, n_failures = _clock(), _cpu_clock(), 0, 0, 0
    for number, seed, scenario, switches in _schedules(world, given):
        if n >= given.schedules or n_failures >= given.failures or _clock() >= until:
            break
        n += 1
        outcome = world.run(scenario, seed, switches)
        n_steps += outcome.n_steps
        if n % _COLLECT_EVERY == 0:
            gc.collect()
        if outcome.failure:
            n_failures += 1
            after_s = _clock() - began
            _tell_failure(name, world, number, seed, scenario, outcome, shrink_s=given.shrink_seconds, after_s=after_s)
    seconds, cpu_s = _clock() - began, _cpu_clock() - cpu_began
    _say(world=name, schedules=n, steps=n_steps, failures=n_failures, seconds=seconds, cpu_s=cpu_s)


def _schedules(world: World, given: Any) -> Iterator[tuple[int, int, Any, dict[int, int] | None]]:
    """Yields what is run: its number, by which it is run again, its seed, scenario, and switches if they are given."""
    if not given.every_switch:
        for seed in itertools.count(given.first_seed, given.every):
            yield seed, seed, world.draw(seed), None
    for number, (scenario, switches) in itertools.islice(
        enumerate(_every_switch(world)), given.first_seed, None, given.every
    ):
        yield number, 0, scenario, switches


def _every_switch(world: World) -> Iterator[tuple[Any, dict[int, int]]]:
    """Yields each small scenario without switches, and then with each one switch that it may have."""
    for scenario in world.small:
        yield scenario, {}
        for i, n in enumerate(world.run(scenario, 0, {}).sizes):
            for choice in range(1, n):
                yield scenario, {i: choice}


def _tell_failure(
    name: str,
    world: World,
    number: int,
    seed: int,
    scenario: Any,
    outcome: Outcome,
    *,
    shrink_s: float,
    after_s: float,
) -> None:
    deadline = _clock() + shrink_s
    small, shrunk = shrink(
        scenario,
        outcome,
        lambda smaller, switches: world.run(smaller, seed, switches),
        goes_on=lambda: _clock() < deadline,
    )
    _say(
        world=name,
        seed=number,
        after_s=after_s,
        failure=shrunk.failure,
        scenario=str(small),
        switches=len(shrunk.switches),
        steps=shrunk.n_steps,
    )


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        raise SystemExit("PYTHONHASHSEED is not 0, and sets would have another order; expected it to be; set it")
    main()
    # Generators of tasks that were ended would run on while the interpreter is taken apart.
    os._exit(0)
