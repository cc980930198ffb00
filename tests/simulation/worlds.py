"""The worlds that can be simulated, by name: what each plays, and how a schedule of it is drawn and run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.found import FOUND, FOUND_SEEDS, SEEDS
from tests.simulation.shrink import Outcome

# Of each part, so many scenarios are small ones.
_N_SMALL = 5


@dataclass(frozen=True)
class World:
    """A world.

    Attributes:
        draw: Draws a scenario from a seed.
        run: Runs a scenario: its seed, and the switches of an earlier run or None.
        share: Its share of the time.
        small: Scenarios of which every switch is tried.
    """

    draw: Callable[[int], Any]
    run: Callable[[Any, int, dict[int, int] | None], Outcome]
    share: float
    small: Sequence[Any] = ()


def worlds() -> Mapping[str, World]:
    """Returns the worlds; the first call installs the simulator in this process."""
    from tests.simulation import replayed, world
    from tests.simulation.parts import PARTS, run_scripts
    from tests.simulation.scenario import (
        SMALL,
        draw_durable,
        draw_evaluated,
        draw_replay,
        draw_rounds_of_actors,
        draw_scenario,
    )

    parts = {
        name: World(draw, partial(run_scripts, build), 0.07, [draw(seed) for seed in range(_N_SMALL)])
        for name, (draw, build) in PARTS.items()
    }
    drawn = {
        "system": World(draw_scenario, world.run_schedule, 0.3, SMALL),
        "durable": World(draw_durable, world.run_schedule, 0.15),
        "in rounds": World(draw_rounds_of_actors, world.run_schedule, 0.15),
        "evaluated": World(draw_evaluated, world.run_schedule, 0.15),
        "replay": World(draw_replay, partial(world.run_schedule, of=replayed.ReplayWorld), 0.15),
    }
    found = [(scenario, SEEDS.get(name, i)) for i, (name, scenario) in enumerate(FOUND.items())]
    found += [(drawn[name].draw(seed), seed) for name, seed in FOUND_SEEDS]
    return {
        "found": World(
            lambda i: found[i % len(found)][0],
            lambda scenario, i, switches: world.run_schedule(scenario, found[i % len(found)][1], switches),
            0.01,
        ),
        **drawn,
        **parts,
    }
