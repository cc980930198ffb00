"""The oracle of `make chaos` notices what it is there to notice."""

import dataclasses
import math

import numpy as np
import pytest

from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.chaos.bookkeeping import EPISODE_STEPS, BookkeepingEnv, observation, reward
from tests.chaos.ledger import Entries, Ledger, StepLedger
from tests.rollouts import build_rollout

SEEDS = (3_000_000_001, 70_000)


def played(sequence: int, n_steps: int = 5) -> Rollout:
    """Returns the rollouts of environments with these seeds."""
    total = (sequence - 1) * n_steps + np.arange(n_steps)
    seen = np.stack([observation(seed, total) for seed in SEEDS], axis=1)
    action = (total[:, None] + np.arange(len(SEEDS))) % 4
    ends = np.repeat((total[:, None] + 1) % EPISODE_STEPS == 0, len(SEEDS), axis=1)
    final_index = np.argwhere(ends)
    final = np.array([observation(SEEDS[b], total[t] + 1, final=True) for t, b in final_index])
    begin = total[0] - total[0] % EPISODE_STEPS
    before = np.maximum(total[0] + np.array([-2, -1]), begin)
    return build_rollout(
        observation={"": seen},
        action=action,
        log_prob=np.full(action.shape, -math.log(4), np.float32),
        last_observation={"": np.stack([observation(seed, total[-1] + 1) for seed in SEEDS])},
        final_observation={"": final.reshape(-1, 24)},
        final_index=final_index,
        previous_observation={"": np.stack([observation(seed, before) for seed in SEEDS])},
        initial_state=np.full((len(SEEDS), 3), float(total[0] > begin), np.float32),
        sequence=sequence,
        reward=reward(seen, action),
        terminated=ends,
        env_seeds=SEEDS,
    )


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_the_environment_shows_what_the_oracle_expects():
    env = BookkeepingEnv()
    seen, _ = env.reset(seed=SEEDS[0])
    for total in range(2 * EPISODE_STEPS):
        np.testing.assert_array_equal(seen, observation(SEEDS[0], np.array(total)))
        after, earned, terminated, *_ = env.step(total % 4)
        assert earned == reward(seen, np.array(total % 4))
        ends = (total + 1) % EPISODE_STEPS == 0
        assert terminated == ends
        np.testing.assert_array_equal(after, observation(SEEDS[0], np.array(total + 1), final=ends))
        seen = env.reset()[0] if terminated else after


def test_a_run_that_is_right_has_no_entries(ledger: Ledger):
    for sequence in (1, 2, 3):
        ledger.enter(played(sequence))
    ledger.check_acknowledged("a", {1: 3})
    assert ledger.entries.all() == []
    assert (ledger.n_rollouts, ledger.count("a"), ledger.count("b")) == (3, 3, 0)
    assert ledger.expected_steps(5) == dict.fromkeys(SEEDS, 15)


@pytest.mark.parametrize(
    ("sequences", "entry"),
    [
        ((1, 2, 2), "duplicated: rollout 2 of a, incarnation 1"),
        ((1, 3), "disordered: rollout 3 of a, incarnation 1, after 1"),
        ((1,), "lost: rollout 2 of a, incarnation 1"),
    ],
)
def test_what_is_there_twice_or_missing_is_noted(ledger: Ledger, sequences: tuple[int, ...], entry: str):
    for sequence in sequences:
        ledger.enter(played(sequence))
    ledger.check_acknowledged("a", {1: 2})
    assert entry in ledger.entries.all()


@pytest.mark.parametrize(
    "what",
    ["observation", "action", "log_prob", "last_observation", "final_observation", "previous_observation"],
)
def test_a_number_that_is_another_is_noted(ledger: Ledger, what: str):
    rollout = played(2)
    columns = rollout.substeps[FLAT_SUBSTEP]
    array = getattr(columns, what)
    changed = array[""].copy() if isinstance(array, dict) else array.copy()
    changed.flat[-1] += 1
    columns = dataclasses.replace(columns, **{what: {"": changed} if isinstance(array, dict) else changed})
    ledger.enter(played(1))
    ledger.enter(dataclasses.replace(rollout, substeps={FLAT_SUBSTEP: columns}))
    assert len(ledger.entries.corrupt) == 1


@pytest.mark.parametrize(("sequence", "state"), [(1, 0.1), (2, 0.0)])
def test_a_state_that_is_another_is_noted(ledger: Ledger, sequence: int, state: float):
    """An episode begins with zeros, and goes on with anything else."""
    for earlier in range(1, sequence):
        ledger.enter(played(earlier))
    rollout = played(sequence)
    columns = rollout.substeps[FLAT_SUBSTEP]
    changed = columns.initial_state.copy()
    changed[1] = state
    columns = dataclasses.replace(columns, initial_state=changed)
    ledger.enter(dataclasses.replace(rollout, substeps={FLAT_SUBSTEP: columns}))
    assert [entry.split(": ")[1] for entry in ledger.entries.corrupt] == [
        "the numbers of the state of environment 1 are not what it showed"
    ]


@pytest.mark.parametrize("what", ["reward", "terminated", "truncated"])
def test_a_step_that_is_another_is_noted(ledger: Ledger, what: str):
    rollout = played(1)
    changed = getattr(rollout, what).copy()
    changed[0, 0] = changed[0, 0] + 1
    ledger.enter(dataclasses.replace(rollout, **{what: changed}))
    assert len(ledger.entries.corrupt) == 1


def test_older_policies_and_other_seeds_are_noted(ledger: Ledger):
    ledger.enter(dataclasses.replace(played(1), policy_version=3))
    ledger.enter(dataclasses.replace(played(2), policy_version=2, env_seeds=SEEDS[::-1]))
    assert "policy 2 acted after 3" in "".join(ledger.entries.corrupt)
    assert "its seeds are (70000, 3000000001); before" in "".join(ledger.entries.corrupt)


@pytest.mark.parametrize(
    ("totals", "kind"), [((0, 1, 2), None), ((0, 1, 1, 2), "duplicated"), ((0, 2), "disordered"), ((0, 1), "lost")]
)
def test_every_step_lies_in_a_buffer_once_and_in_order(totals: tuple[int, ...], kind: str | None):
    steps = StepLedger(entries := Entries())
    seen, action = observation(SEEDS[0], np.array(totals)), np.zeros(len(totals), np.int64)
    steps.enter(seen, action, reward(seen, action))
    steps.check_complete({SEEDS[0]: 3})
    assert [name for name, found in vars(entries).items() if found] == ([kind] if kind else [])
    steps.enter(seen[:0], action[:0], np.zeros(0, np.float32))
    assert steps.n_steps == len(totals)


def test_a_reward_of_another_step_is_noted():
    steps = StepLedger(entries := Entries())
    seen, action = observation(SEEDS[0], np.arange(2)), np.zeros(2, np.int64)
    steps.enter(seen, action, reward(seen, action)[::-1])
    assert len(entries.corrupt) == 2
