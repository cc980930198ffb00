"""Walks over every field of every RPC, and over every socket, and prints their costs; for `python -m tests.attacks`.

A row names what was attacked, and has the rate of honest actors before and meanwhile, the slowest answer of the control
plane before and after, the memory by which the process that grew most has grown, and the lines that all have logged.
Attackers share the cores of this machine with all others.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.table import print_table
from tests.attacks import field_walk, socket_walk
from tests.attacks.fields import Sizes
from tests.attacks.fleet import Figures, fleet

_COSTS: Final = ("answer before", "after", "memory", "log lines")


def _costs(before: Figures, after: Figures) -> tuple[str, ...]:
    n_bytes, n_lines = field_walk.growth(before, after)
    return (_slowest(before), _slowest(after), f"{n_bytes / 2**20:+.0f} MiB", f"{n_lines:,}")


def _slowest(figures: Figures | None) -> str:
    return "" if figures is None else f"{max(figures.answers_s.values()):.2f} s"


def print_walks(seconds: float, *, only: str) -> bool:
    """Walks, and prints the tables; returns whether everything was as it should be.

    Args:
        seconds: The time of each attack at a socket.
        only: A part of the names of RPCs or sockets, as "learner: rollcast.v1.RolloutService.Join"; empty: all.
    """
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder)) as started:
        rows = []
        for held in socket_walk.walk(started, seconds, only=only):
            rates = f"{held.rate_before:,.0f}", f"{held.rate_during / held.rate_before:.0%}"
            costs = _costs(held.before, held.after)
            rows.append((held.member, held.served, held.attack, *rates, _slowest(held.during), *costs))
        print_table(("process", "socket", "attack", "steps/s before", "during", "answer during", *_COSTS), rows)
        rows = list(_field_rows(field_walk.walk(started, Sizes(), only=only), started.rate(seconds), faults))
        print_table(("process", "RPC", "requests", "refused", "slowest", "steps/s before", "during", *_COSTS), rows)
    for fault in faults:
        print(f"FAULT: {fault}")  # noqa: T201
    return not faults


def _field_rows(
    walked: Iterable[field_walk.Walked], rate_before: float, faults: list[str]
) -> Iterable[tuple[str, ...]]:
    for one in walked:
        faults.extend(f"{one.server}: {one.method}: {fault}" for fault in one.faults)
        n_all = one.outcomes.total()
        n_taken = one.outcomes["OK"] + one.outcomes["waits"]
        if one.after is not None:
            n_bytes, n_lines = field_walk.growth(one.before, one.after)
            if n_bytes > field_walk.MAX_GROWTH_BYTES or n_lines > field_walk.MAX_LINES:
                faults.append(f"{one.server}: {one.method}: grew by {n_bytes} bytes, and {n_lines} lines")
            costs = _costs(one.before, one.after)
        else:
            costs = ("", "", "", "")
        rates = f"{rate_before:,.0f}", f"{one.steps_per_s / rate_before:.0%}"
        yield one.server, one.method, f"{n_all:,}", f"{n_all - n_taken:,}", f"{one.slowest[0]:.2f} s", *rates, *costs
