"""The oracle: what was accepted, held against what was acknowledged and what must have been played."""

import math
import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.chaos.bookkeeping import EPISODE_STEPS, observation, reward, seed_and_total, stacked
from tests.chaos.games import is_of_games, what_is_wrong_in_games

# One process of an actor: its name and its incarnation.
Process = tuple[str, int]


@dataclass
class Entries:
    """The faults that were found; a run that is right has none.

    Attributes:
        lost: Acknowledged, and not there.
        duplicated: There twice.
        disordered: Out of order, or rollouts before it are missing.
        corrupt: There, but not what was played.
    """

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        """All of them, each with its kind."""
        return [f"{kind}: {text}" for kind, texts in vars(self).items() for text in texts]


class Ledger:
    """Is told of every rollout that was accepted, in the order in which that happened. Any thread may call.

    Args:
        n_actions: Of the environment: acting uniformly at random, all have the same log-probability.
    """

    def __init__(self, n_actions: int = 4) -> None:
        self._log_prob = -math.log(n_actions)
        self.changed = threading.Condition()  # guards all below
        self._accepted: dict[Process, int] = {}
        self._versions: dict[Process, int] = {}
        self._seeds: dict[Process, tuple[int, ...]] = {}
        self._n_accepted: dict[str, int] = {}
        self.entries = Entries()

    def count(self, actor_id: str) -> int:
        """Rollouts of an actor that were accepted, whichever process played them."""
        with self.changed:
            return self._n_accepted.get(actor_id, 0)

    def expected_steps(self, n_rollout_steps: int) -> dict[int, int]:
        """By environments' seed, how many transitions were accepted in rollouts of so many steps."""
        with self.changed:
            return {
                seed: self._accepted[process] * n_rollout_steps
                for process, seeds in self._seeds.items()
                for seed in seeds
            }

    @property
    def n_rollouts(self) -> int:
        """Rollouts that were accepted."""
        with self.changed:
            return sum(self._n_accepted.values())

    def enter(self, rollout: Rollout) -> None:
        """Notes and checks a rollout that was accepted."""
        process, sequence = (rollout.actor_id, rollout.incarnation), rollout.sequence
        name = f"rollout {sequence} of {rollout.actor_id}, incarnation {rollout.incarnation}"
        faults = what_is_wrong(rollout, self._log_prob)
        with self.changed:
            last = self._accepted.get(process, 0)
            if sequence <= last:
                self.entries.duplicated.append(name)
            elif sequence != last + 1:
                self.entries.disordered.append(f"{name}, after {last}")
            if self._seeds.setdefault(process, rollout.env_seeds) != rollout.env_seeds:
                faults.append(f"its seeds are {rollout.env_seeds}; before, {self._seeds[process]}")
            if rollout.policy_version < self._versions.get(process, 1):
                faults.append(f"policy {rollout.policy_version} acted after {self._versions[process]}")
            self._versions[process] = rollout.policy_version
            self.entries.corrupt.extend(f"{name}: {fault}" for fault in faults)
            self._accepted[process] = max(last, sequence)
            self._n_accepted[rollout.actor_id] = self._n_accepted.get(rollout.actor_id, 0) + 1
            self.changed.notify_all()

    def check_acknowledged(self, actor_id: str, acknowledged: dict[int, int]) -> None:
        """Notes what an actor was acknowledged, by incarnation, and is not there."""
        with self.changed:
            for incarnation, sequence in acknowledged.items():
                accepted = self._accepted.get((actor_id, incarnation), 0)
                self.entries.lost.extend(
                    f"rollout {missing} of {actor_id}, incarnation {incarnation}"
                    for missing in range(accepted + 1, sequence + 1)
                )


class StepLedger:
    """Is told of every transition that is read out of a buffer, in the order in which they lie there."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._steps: dict[int, int] = {}
        self.n_steps = 0

    def enter(self, observed: NDArray[np.float32], action: NDArray[np.int64], earned: NDArray[np.float32]) -> None:
        """Notes and checks transitions: observations `[N, 24]`, or stacks `[N, K, 24]`; actions and rewards `[N]`."""
        if observed.ndim == 3:
            stacks, observed = observed, observed[:, -1]
            for stack, seed, total in zip(stacks, *map(np.ndarray.tolist, seed_and_total(observed)), strict=True):
                if not np.array_equal(stack, stacked(seed, total, len(stack))):
                    self._entries.corrupt.append(f"the frames up to step {total} of the environment with seed {seed}")
        self.n_steps += len(observed)
        wrong = reward(observed, action) != earned
        for seed, total, is_wrong in zip(*map(np.ndarray.tolist, (*seed_and_total(observed), wrong)), strict=True):
            expected = self._steps.get(seed, 0)
            name = f"step {total} of the environment with seed {seed}, in the buffer"
            if is_wrong:
                self._entries.corrupt.append(f"{name}: its reward is another's")
            if total < expected:
                self._entries.duplicated.append(name)
            elif total > expected:
                self._entries.disordered.append(f"{name}, after {expected}")
            self._steps[seed] = max(expected, total + 1)

    def check_complete(self, expected_steps: dict[int, int]) -> None:
        """Notes what was accepted, by environments' seed, and did not lie in the buffer."""
        for seed, n_steps in expected_steps.items():
            found = self._steps.get(seed, 0)
            if found < n_steps:
                self._entries.lost.append(f"steps {found} to {n_steps - 1} of the environment with seed {seed}")


def what_is_wrong(rollout: Rollout, log_prob: float | None = None) -> list[str]:
    """Compares a rollout, number by number, with what its environments must have shown.

    Args:
        log_prob: Of every action; None: the policy learns, and any that is possible will do.
    """
    if is_of_games(rollout):
        return what_is_wrong_in_games(rollout)
    columns = rollout.substeps[FLAT_SUBSTEP]
    n_steps = rollout.n_steps
    first = (rollout.sequence - 1) * n_steps
    total = first + np.arange(n_steps)
    seen, action = columns.observation[""], columns.action
    ends = (total + 1) % EPISODE_STEPS == 0
    final = dict(zip(map(tuple, rollout.final_index.tolist()), columns.final_observation[""], strict=True))
    faults = []
    for b, seed in enumerate(rollout.env_seeds):
        finals = {(t, b): observation(seed, total[t] + 1, final=True) for t in np.flatnonzero(ends).tolist()}
        right = {
            "observations": np.array_equal(seen[:, b], observation(seed, total)),
            "rewards": np.array_equal(rollout.reward[:, b], reward(observation(seed, total), action[:, b])),
            "ends": np.array_equal(rollout.terminated[:, b], ends) and not rollout.truncated[:, b].any(),
            "log-probabilities": bool((columns.log_prob[:, b] <= 0).all())
            if log_prob is None
            else np.allclose(columns.log_prob[:, b], log_prob, rtol=1e-6),
            "last observation": np.array_equal(
                columns.last_observation[""][b], observation(seed, np.array(first + n_steps))
            ),
            "final observations": finals.keys() == {key for key in final if key[1] == b}
            and all(np.array_equal(final[key], shown) for key, shown in finals.items()),
        }
        if columns.previous_observation is not None:
            frames = columns.previous_observation[""][b]
            right["frames before it"] = np.array_equal(frames, stacked(seed, first, len(frames) + 1)[:-1])
        if columns.initial_state is not None:
            right["numbers of the state"] = bool(columns.initial_state[b].any()) is (first % EPISODE_STEPS > 0)
        faults.extend(
            f"the {what} of environment {b} are not what it showed" for what, is_so in right.items() if not is_so
        )
    return faults
