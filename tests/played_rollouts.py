"""Rollouts of an environment in which every observation is a number that comes once, and what is true of them."""

import dataclasses
from dataclasses import dataclass, field

import gymnasium
import numpy as np

from rollcast.learner.replay.columns.memory import host_array
from rollcast.learner.replay.columns.samples import ReplaySample, SampleColumns
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from tests.rollouts import build_rollout

SPACES: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=gymnasium.spaces.Dict(
            a=gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32), b=gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)
        ),
        action=gymnasium.spaces.Discrete(1000),
    )
}
GOES_ON, TERMINATES, TRUNCATES = range(3)


@dataclass(frozen=True)
class Transition:
    """One step, by the number of its observation."""

    observation: int
    reward: float
    terminated: bool
    truncated: bool
    next_observation: int
    follower: "Transition | None" = None


@dataclass
class World:
    """Plays B environments, continuing from rollout to rollout; `has_reset_rows` for NEXT_STEP resets.

    With a `state_size`, rollouts bring recurrent states: those of the numbers of the first valid rows.

    Attributes:
        frame_stack: K; with more than 1, rollouts have the frames before them.
        stacks: The last K observations of its episode up to each observation, the first repeated, by number.
    """

    n_steps: int
    has_reset_rows: bool
    n_envs: int = 2
    state_size: int = 0
    frame_stack: int = 1
    stacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _count: int = 0
    _sequence: int = 0
    _current: dict[int, int] = field(default_factory=dict)
    _must_reset: dict[int, bool] = field(default_factory=dict)

    def play(self, ends: np.ndarray) -> tuple[Rollout, list[Transition]]:
        """Plays T steps; `ends` [T, B] says how each step ends. Returns the transitions, trajectory by trajectory."""
        shape = (self.n_steps, self.n_envs)
        numbers, last = np.zeros(shape, np.int64), np.zeros(self.n_envs, np.int64)
        reward = np.zeros(shape, np.float32)
        terminated, truncated, valid = np.zeros(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
        final_index, finals, played = [], [], []
        self._sequence += 1
        for b in range(self.n_envs):
            chain: list[Transition] = []
            current = self._current.get(b) or self._number()
            must_reset = self._must_reset.get(b, False)
            for t in range(self.n_steps):
                numbers[t, b] = current
                if must_reset:
                    valid[t, b], must_reset, current = False, False, self._number()
                    continue
                following = self._number(current)
                reward[t, b] = current % 97
                terminated[t, b], truncated[t, b] = ends[t, b] == TERMINATES, ends[t, b] == TRUNCATES
                chain.append(
                    Transition(
                        int(numbers[t, b]),
                        float(reward[t, b]),
                        bool(terminated[t, b]),
                        bool(truncated[t, b]),
                        following,
                    )
                )
                current = following
                if ends[t, b] and self.has_reset_rows:
                    must_reset = True
                elif ends[t, b]:
                    final_index.append((t, b))
                    finals.append(following)
                    current = self._number()
            last[b] = current
            self._current[b], self._must_reset[b] = current, must_reset
            played += _linked(chain)
        rollout = build_rollout(
            observation=observations(numbers),
            action=numbers % 1000,
            log_prob=-numbers.astype(np.float32),
            last_observation=observations(last),
            final_observation=observations(np.array(finals, np.int64)),
            final_index=final_index,
            initial_state=states(numbers[valid.argmax(axis=0), range(self.n_envs)], self.state_size),
            sequence=self._sequence,
            policy_version=self._sequence,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=None if valid.all() else valid,
        )
        return self.with_previous(rollout), played

    def with_previous(self, rollout: Rollout) -> Rollout:
        """The same rollout with the frames before the first valid row of each trajectory, if there is a stack."""
        if self.frame_stack == 1:
            return rollout
        valid = np.ones(rollout.reward.shape, bool) if rollout.valid is None else rollout.valid
        columns = rollout.substeps[FLAT_SUBSTEP]
        numbers = columns.observation["a"][valid.argmax(axis=0), np.arange(rollout.n_envs), 0]
        nothing = (0,) * self.frame_stack
        previous = np.array([self.stacks.get(int(number), nothing)[:-1] for number in numbers], np.int64)
        changed = dataclasses.replace(columns, previous_observation=observations(previous))
        return dataclasses.replace(rollout, substeps={FLAT_SUBSTEP: changed})

    def _number(self, before: int | None = None) -> int:
        """A new number, of the observation that follows another one, or that begins an episode."""
        self._count += 1
        seen = (self._count,) * self.frame_stack if before is None else self.stacks[before]
        self.stacks[self._count] = (*seen[1:], self._count)
        return self._count


def observations(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """The observations of these numbers."""
    pixels = (numbers[..., None] * 7 + np.arange(6)) % 256
    return {
        "a": np.stack([numbers, -numbers], axis=-1).astype(np.float32),
        "b": pixels.astype(np.uint8).reshape(*numbers.shape, 2, 3),
    }


def states(numbers: np.ndarray, state_size: int) -> np.ndarray | None:
    """The recurrent states, [N, S], of rows with these numbers; None without a state."""
    return (numbers[:, None] + 0.25 * np.arange(state_size)).astype(np.float32) if state_size else None


def random_ends(rng: np.random.Generator, n_steps: int, n_envs: int, probability: float = 0.3) -> np.ndarray:
    """The ends of a rollout's steps."""
    return np.where(rng.random((n_steps, n_envs)) < probability, rng.integers(1, 3, (n_steps, n_envs)), GOES_ON)


def folded(first: Transition, n_step: int, discount: float) -> tuple[float, int, Transition]:
    """The brute-force twin of folding: reward, number of steps, the last transition."""
    reward, n_steps, step = first.reward, 1, first
    while n_steps < n_step and step.follower is not None and not (step.terminated or step.truncated):
        step = step.follower
        reward += discount**n_steps * step.reward
        n_steps += 1
    return reward, n_steps, step


def check_transitions(
    sample: ReplaySample,
    known: dict[int, Transition],
    n_step: int = 1,
    discount: float = 0.9,
    stacks: dict[int, tuple[int, ...]] | None = None,
):
    """Every entry of a sample is one of those known, right in every column. Returns the numbers."""
    columns = on_host(sample).substeps[FLAT_SUBSTEP]
    shown = columns.observation["a"][0, ..., 0].astype(np.int64)
    numbers = shown if stacks is None else shown[:, -1]
    following = []
    for b, number in enumerate(numbers.tolist()):
        reward, n_steps, last = folded(known[number], n_step, discount)
        following.append(last.next_observation)
        np.testing.assert_allclose(sample.reward[0, b], reward, rtol=1e-6)
        assert sample.n_steps[b] == n_steps
        np.testing.assert_allclose(sample.discount[b], discount**n_steps, rtol=1e-6)
        assert bool(sample.terminated[0, b]) == last.terminated
        assert bool(sample.truncated[0, b]) == last.truncated
    if stacks is not None:
        seen, following = [stacks[number] for number in numbers.tolist()], [stacks[number] for number in following]
    else:
        seen = numbers.tolist()
    for path, expected in observations(np.array(seen)).items():
        np.testing.assert_array_equal(columns.observation[path][0], expected)
    for path, expected in observations(np.array(following)).items():
        np.testing.assert_array_equal(columns.next_observation[path], expected)
    np.testing.assert_array_equal(columns.action[0], numbers % 1000)
    assert sample.valid.all()
    return numbers


def on_host(sample: ReplaySample) -> ReplaySample:
    """The same sample, all of it in main memory."""

    substeps = {key: columns.map(host_array, SampleColumns) for key, columns in sample.substeps.items()}
    return dataclasses.replace(sample, substeps=substeps)


def check_same(sample: ReplaySample, twin: ReplaySample):
    """Two samples have the same bits, wherever they are."""
    _check_same(dataclasses.asdict(on_host(sample)), dataclasses.asdict(on_host(twin)), "sample")


def _check_same(mine: object, other: object, where: str):
    if isinstance(mine, dict):
        assert isinstance(other, dict)
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            _check_same(value, other[key], f"{where}/{key}")
    else:
        np.testing.assert_array_equal(mine, other, where, strict=isinstance(mine, np.ndarray))


def _linked(chain: list[Transition]) -> list[Transition]:
    linked: list[Transition] = []
    follower = None
    for step in reversed(chain):
        follower = Transition(
            step.observation, step.reward, step.terminated, step.truncated, step.next_observation, follower
        )
        linked.append(follower)
    return linked[::-1]
