"""An actor as `python -m rollcast.actor` runs it, which also writes down the acknowledgements and policies it is given.

    python -m tests.chaos.acting FILE [options of `python -m rollcast.actor`]

Each file is written to before the actor acts on what it says, and by the kernel: SIGKILL loses no line of it. FILE has
the acknowledgements, and the one beside it that ends in `.policies` the policies.
"""

import os
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

from rollcast.actor.acting.process import main
from rollcast.services.process.interrupts import run_to_end
from rollcast.services.rollouts.rollouts import StreamProgress
from rollcast.services.streams.uplink import RolloutUplink
from tests.chaos.policies import write_policies


def write_acknowledgements(path: Path) -> None:
    """From now on, lines of `incarnation acknowledged_sequence` are appended to the file."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    make, responses = RolloutUplink.__init__, RolloutUplink.responses
    incarnations: dict[RolloutUplink, int] = {}

    def __init__(uplink: RolloutUplink, *args: Any, **options: Any) -> None:  # noqa: N807
        make(uplink, *args, **options)
        incarnations[uplink] = signature(make).bind(uplink, *args, **options).arguments["incarnation"]

    def written(uplink: RolloutUplink) -> Iterator[StreamProgress]:
        for progress in responses(uplink):
            os.write(opened, f"{incarnations[uplink]} {progress.acknowledged_sequence}\n".encode())
            yield progress

    RolloutUplink.__init__, RolloutUplink.responses = __init__, written


def read_acknowledgements(path: Path) -> dict[int, int]:
    """The last sequence that was acknowledged, by incarnation."""
    acknowledged: dict[int, int] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        incarnation, sequence = map(int, line.split())
        acknowledged[incarnation] = max(acknowledged.get(incarnation, 0), sequence)
    return acknowledged


if __name__ == "__main__":
    write_acknowledgements(Path(sys.argv[1]))
    write_policies(Path(sys.argv[1]).with_suffix(".policies"))
    run_to_end(lambda: main(sys.argv[2:]))
