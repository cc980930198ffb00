"""A schedule before it runs: what is played, and the faults between its steps, both decided by a seed."""

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass

# The kinds of faults. A fault falls on whatever its number picks at its step.
FAULTS = (
    "kill an actor",
    "kill the learner",
    "kill a relay",
    "replace an actor",
    "cut a connection",
    "silence a connection",
    "slow a connection",
    "lose a message",
    "freeze a process",
    "slow the disk",
    "fill the disk",
)
_SETTINGS = ("queue", "on_policy", "bounded", "lag", "in_step")


@dataclass(frozen=True)
class Fault:
    """A fault between two steps.

    Attributes:
        step: The number of the step before it.
        kind: One of `FAULTS`.
        number: Picks what it falls on.
    """

    step: int
    kind: str
    number: int


@dataclass(frozen=True)
class Scenario:
    """The plan of a schedule.

    Attributes:
        setting: How the learner gives credit: one of `_SETTINGS`.
        n_actors: The actors that play from the start to the end, however often they are killed.
        envs_per_actor: The trajectories of a rollout.
        batch_size: B, in trajectories.
        factor: The capacity of the queue, in batches.
        n_updates: The updates that end training.
        checkpoint_every: The updates from one checkpoint to the next.
        n_relays: The relays, over which the actors are spread; 0: they connect directly.
        is_durable: Whether the learner keeps a write-ahead log.
        rate: The share of switch points at which another task goes on.
        knows_learner: Whether actors behind relays know the learner's address, too.
        n_clients: The evaluators, or those that draw from a replay buffer.
        n_hollow: The actors that join, take places for whole batches, and send nothing.
        faults: The faults, in their order.
    """

    setting: str
    n_actors: int
    envs_per_actor: int
    batch_size: int
    factor: float
    n_updates: int
    checkpoint_every: int
    n_relays: int
    is_durable: bool
    rate: float
    knows_learner: bool
    n_clients: int = 0
    n_hollow: int = 0
    faults: tuple[Fault, ...] = ()

    def smaller(self) -> Iterator["Scenario"]:
        """Yields scenarios with less in them."""
        for fault in self.faults:
            yield dataclasses.replace(self, faults=tuple(each for each in self.faults if each is not fault))
        if self.n_actors > 1 and self.setting != "in_step":
            yield dataclasses.replace(self, n_actors=self.n_actors - 1)
        if self.n_clients > 1:
            yield dataclasses.replace(self, n_clients=self.n_clients - 1)
        if self.n_hollow:
            yield dataclasses.replace(self, n_hollow=self.n_hollow - 1)
        if self.n_relays:
            yield dataclasses.replace(self, n_relays=self.n_relays - 1)
        if self.n_updates > 1:
            yield dataclasses.replace(self, n_updates=self.n_updates - 1)

    def __str__(self) -> str:
        parts = [f"{field.name}={getattr(self, field.name)}" for field in dataclasses.fields(self)[:-1]]
        return ", ".join(parts) + "".join(f"\n  after step {f.step}: {f.kind} ({f.number})" for f in self.faults)


# Two actors and one fault: few enough steps that every switch of them can be tried.
SMALL = tuple(
    Scenario(
        setting=setting,
        n_actors=2,
        envs_per_actor=1,
        batch_size=1,
        factor=1.0,
        n_updates=1,
        checkpoint_every=1,
        n_relays=0,
        is_durable=False,
        rate=0.0,
        knows_learner=True,
        faults=(Fault(60, kind, 1),),
    )
    for setting in ("queue", "on_policy")
    for kind in FAULTS
    if kind not in {"kill a relay", "slow the disk", "fill the disk"}
)


def draw_scenario(seed: int) -> Scenario:
    """Draws a scenario of any kind."""
    rng = random.Random(seed)
    setting = rng.choice(_SETTINGS)
    is_durable = setting != "in_step" and rng.random() < 0.3
    n_relays = rng.choice((0, 0, 0, 1, 2)) if setting != "in_step" else 0
    return _draw(rng, setting, is_durable=is_durable, n_relays=n_relays)


def draw_durable(seed: int) -> Scenario:
    """Draws a scenario in which a learner with a write-ahead log is killed."""
    rng = random.Random(seed)
    setting = rng.choice(("queue", "bounded", "on_policy"))
    scenario = _draw(rng, setting, is_durable=True, n_relays=0)
    killed = [Fault(int(10 ** rng.uniform(1.5, 3.0)), "kill the learner", rng.randrange(1 << 16))]
    faults = sorted((*scenario.faults, *killed), key=lambda fault: fault.step)
    return dataclasses.replace(scenario, faults=tuple(faults), checkpoint_every=rng.choice((1, 2, 2, 99)))


def draw_rounds_of_actors(seed: int) -> Scenario:
    """Draws a scenario in which actors play in rounds; in a third of them, one or two send nothing."""
    rng = random.Random(seed)
    scenario = _draw(rng, "on_policy", is_durable=False, n_relays=rng.choice((0, 0, 1)))
    return dataclasses.replace(scenario, n_hollow=rng.choice((1, 2)) if seed % 3 == 1 else 0)


def draw_evaluated(seed: int) -> Scenario:
    """Draws a scenario with evaluators."""
    rng = random.Random(seed)
    setting = rng.choice(("queue", "bounded", "on_policy"))
    scenario = _draw(rng, setting, is_durable=False, n_relays=rng.choice((0, 0, 1)))
    # One actor is enough to train: faults shall fall on evaluators.
    return dataclasses.replace(scenario, n_actors=1, n_clients=rng.choice((1, 1, 2)))


def draw_replay(seed: int) -> Scenario:
    """Draws a scenario in which actors fill a replay buffer, from which others draw."""
    rng = random.Random(seed)
    scenario = _draw(rng, "queue", is_durable=False, n_relays=rng.choice((0, 0, 1)))
    return dataclasses.replace(scenario, n_clients=rng.choice((1, 2)))


def _draw(rng: random.Random, setting: str, *, is_durable: bool, n_relays: int) -> Scenario:
    n_actors, envs_per_actor = rng.randint(1, 3), rng.choice((1, 1, 2))
    batch_size = n_actors * envs_per_actor if setting == "in_step" else rng.choice((1, 2, 3, 4))
    without = {"kill a relay"} if not n_relays else set()
    without |= {"slow the disk", "fill the disk"} if not is_durable else set()
    kinds = [kind for kind in FAULTS if kind not in without]
    n_faults = rng.choice((0, 1, 1, 2, 3, 4))
    # Most things happen at the beginning, and some at the very end.
    longest = int(10 ** rng.uniform(1.5, 3.5))
    faults = sorted(
        (Fault(rng.randrange(longest), rng.choice(kinds), rng.randrange(1 << 16)) for _ in range(n_faults)),
        key=lambda fault: fault.step,
    )
    return Scenario(
        setting=setting,
        n_actors=n_actors,
        envs_per_actor=envs_per_actor,
        batch_size=batch_size,
        factor=rng.choice((1.0, 1.0, 1.1, 2.0)),
        n_updates=rng.randint(2, 5),
        checkpoint_every=rng.choice((1, 2, 99)),
        n_relays=n_relays,
        is_durable=is_durable,
        rate=rng.choice((0.0, 0.001, 0.01, 0.05, 0.2)),
        knows_learner=not n_relays or rng.random() < 0.5,
        faults=tuple(faults),
    )
