"""Environments that dial in: what their rollouts must have, and what became of every step that they have played.

Nobody knows beforehand what a rollout of such environments has: they come and go, and each has as many rows as it has
played. But every observation tells its life and its step. A life is an environment of a client from its welcome until
its stream ends, and has a seed of its own.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.chaos.bookkeeping import EPISODE_STEPS, observation, reward, seed_and_total, stacked

# Actors of these names act for environments that dial in.
GAMES: Final = "games-"
# A life's seed is `client * 2^24 + number * 2^4 + environment`.
_LIVES: Final = 20
_ENVIRONMENTS: Final = 4
# Rollouts of a successor, after which everything of the life before it has been sent.
_N_AFTER: Final = 3

# An actor's name, and its incarnation; a rollout's sequence.
Name = tuple[str, int, int]


class Stretch(NamedTuple):
    """Steps `first` to `first + n - 1` of one life, in the rows of one rollout."""

    seed: int
    first: int
    n: int


def seed_of_life(client: int, number: int, environment: int) -> int:
    """Returns the seed of a client's life, by the life's number and the environment's."""
    return (client << _ENVIRONMENTS + _LIVES) + (number << _ENVIRONMENTS) + environment


def client_of(seed: int) -> int:
    """Returns the number of the client that has lived so."""
    return seed >> _ENVIRONMENTS + _LIVES


def is_of_games(rollout: Rollout) -> bool:
    """Returns whether environments that dialled in have played a rollout."""
    return rollout.actor_id.startswith(GAMES)


def stretches(rollout: Rollout) -> list[Stretch]:
    """Returns what a rollout has, by place and in the order of the rows."""
    found: list[Stretch] = []
    for b in range(rollout.n_envs):
        seeds, totals = seed_and_total(rollout.substeps[FLAT_SUBSTEP].observation[""][_rows(rollout, b), b])
        for life in np.split(np.arange(len(seeds)), np.flatnonzero(np.diff(seeds)) + 1):
            if len(life):
                found.append(Stretch(int(seeds[life[0]]), int(totals[life[0]]), len(life)))
    return found


def what_is_wrong_in_games(rollout: Rollout) -> list[str]:
    """Compares a rollout, number by number, with what each row's own observation says that there must be."""
    columns, seen = rollout.substeps[FLAT_SUBSTEP], rollout.substeps[FLAT_SUBSTEP].observation[""]
    final = dict(zip(map(tuple, rollout.final_index.tolist()), columns.final_observation[""], strict=True))
    faults = []
    for b in range(rollout.n_envs):
        rows = _rows(rollout, b)
        if not len(rows):
            continue
        seed, total = seed_and_total(seen[rows, b])
        shown = np.stack([observation(one, step) for one, step in zip(seed.tolist(), total, strict=True)])
        follows = (np.diff(seed) == 0) & (np.diff(total) == 1)
        begins = (np.diff(seed) != 0) & (total[1:] == 0)
        ends = (total + 1) % EPISODE_STEPS == 0
        cut = rollout.truncated[rows, b]
        finals = {
            (int(t), b): observation(int(seed[i]), total[i] + 1, final=bool(ends[i]))
            for i, t in enumerate(rows)
            if ends[i] or cut[i]
        }
        right = {
            "rows": np.array_equal(rows, np.arange(rollout.n_steps - len(rows), rollout.n_steps)),
            "observations": np.array_equal(seen[rows, b], shown),
            "order of steps": bool((follows | begins).all()),
            "rewards": np.array_equal(rollout.reward[rows, b], reward(shown, columns.action[rows, b])),
            "ends": np.array_equal(rollout.terminated[rows, b], ends),
            # a life that another follows was cut; the last row of a rollout may be cut, too
            "cuts": np.array_equal(cut[:-1], begins & ~ends[:-1]) and not (cut & ends).any(),
            "log-probabilities": bool((columns.log_prob[rows, b] <= 0).all()),
            "final observations": finals.keys() == {key for key in final if key[1] == b}
            and all(np.array_equal(final[key], one) for key, one in finals.items()),
            "last observation": bool(ends[-1] or cut[-1])
            or np.array_equal(columns.last_observation[""][b], observation(int(seed[-1]), total[-1] + 1)),
        }
        if columns.previous_observation is not None:
            frames = columns.previous_observation[""][b]
            right["frames before it"] = np.array_equal(
                frames, stacked(int(seed[0]), int(total[0]), len(frames) + 1)[:-1]
            )
        if columns.initial_state is not None:
            right["numbers of the state"] = bool(columns.initial_state[b].any()) is bool(total[0] % EPISODE_STEPS > 0)
        faults.extend(f"the {what} of place {b} are not what was played" for what, is_so in right.items() if not is_so)
    return faults


def _rows(rollout: Rollout, b: int) -> np.ndarray:
    return np.arange(rollout.n_steps) if rollout.valid is None else np.flatnonzero(rollout.valid[:, b])


@dataclass
class Plays:
    """The rollouts of environments that dialled in, each once, however often a learner that dies has taken it.

    Attributes:
        of: The stretches of each rollout.
        n_rollouts: By client, the rollouts that were taken and have steps of it.
    """

    of: dict[Name, Sequence[Stretch]] = field(default_factory=dict)
    n_rollouts: dict[int, int] = field(default_factory=dict)

    def enter(self, name: Name, played: Iterable[Stretch]) -> str | None:
        """Notes a rollout that was taken, and returns what is wrong: it was taken before, and had other steps."""
        played = tuple(played)
        for client in {client_of(one.seed) for one in played}:
            self.n_rollouts[client] = self.n_rollouts.get(client, 0) + 1
        before = self.of.setdefault(name, played)
        return None if before == played else f"rollout {name} had {before}, and now {played}"

    def lives(self) -> set[int]:
        """Returns the seeds of all lives that have steps in a rollout."""
        return {one.seed for played in self.of.values() for one in played}

    def check(
        self, given: Mapping[int, int], destroyed: Mapping[tuple[str, int], Container[int]] = MappingProxyType({})
    ) -> tuple[list[str], list[str], list[str]]:
        """Checks that every step of every life was there once, in order, and up to the last that the actor knew.

        Args:
            given: By the seed of each life, the actions that its client has got: all but the last have results.
            destroyed: By actor and incarnation, the sequences of the rollouts that a fault has destroyed.

        Returns:
            What was lost, what was there twice, and what was out of order.
        """
        lost, twice, disordered = [], [], []
        known: dict[int, int] = {}
        rollouts: dict[int, list[Name]] = {}

        def is_destroyed(process: tuple[str, int], sequences: Iterable[int]) -> bool:
            return any(sequence in destroyed.get(process, ()) for sequence in sequences)

        for name in sorted(self.of):
            actor_id, incarnation, sequence = name
            for seed, first, n in self.of[name]:
                expected = known.get(seed, 0)
                text = f"steps {first} to {first + n - 1} of life {seed:#x}, in rollout {name}, after {expected}"
                since = rollouts[seed][-1][2] + 1 if seed in rollouts else sequence - 1
                if first < expected:
                    twice.append(text)
                elif first > expected and not is_destroyed((actor_id, incarnation), range(since, sequence)):
                    (disordered if expected else lost).append(text)
                known[seed] = max(expected, first + n)
                rollouts.setdefault(seed, []).append(name)
        for seed, n_known in known.items():
            # the rest of a life is in a rollout that its actor sends, unless the actor itself dies
            actor_id, incarnation, last = rollouts[seed][-1]
            after = [
                name for name in rollouts.get(seed + (1 << _ENVIRONMENTS), []) if name[:2] == rollouts[seed][0][:2]
            ]
            if (
                len(after) > _N_AFTER
                and n_known < given[seed] - 1
                and not is_destroyed((actor_id, incarnation), [last + 1])
            ):
                lost.append(f"steps {n_known} to {given[seed] - 2} of life {seed:#x}, which the actor knew")
        return lost, twice, disordered


def read_given(path: Path) -> dict[int, int]:
    """Returns the number of actions that each life has got, as its client wrote it down; see `tests.chaos.playing`."""
    given: dict[int, int] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        seed, n_given = map(int, line.split())
        given[seed] = n_given
    return given


def n_lives(given: Iterable[int]) -> int:
    """Returns the number of streams in which a client was welcome, from the seeds of its lives."""
    return len({seed >> _ENVIRONMENTS for seed in given})
