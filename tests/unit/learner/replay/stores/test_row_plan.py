import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.replay.stores.row_plan import RowPlan, acting_trajectories, plan_rows
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer
from tests.front_padding import play_padded
from tests.played_rollouts import (
    World,
    on_host,
)
from tests.rollouts import make_rollout

pytestmark = pytest.mark.slow

T, B = 5, 4
# Rows before the first transition of each of some trajectories: none, some, all.
PADDING = st.lists(st.integers(0, T), min_size=1, max_size=4)


@given(PADDING, st.integers(0, 999))
@settings(max_examples=30)
def test_acting_trajectories_are_whole_and_in_order(n_padded: list[int], seed: int):
    rng = np.random.default_rng(seed)
    rollout, _ = play_padded(World(T, has_reset_rows=False, n_envs=len(n_padded), state_size=3), n_padded, rng)
    acting = acting_trajectories(rollout)
    kept = [b for b, n in enumerate(n_padded) if n < T]
    assert (acting is rollout) == (len(kept) == len(n_padded))
    assert acting.n_envs == len(kept)
    columns, others = acting.substeps[FLAT_SUBSTEP], rollout.substeps[FLAT_SUBSTEP]
    np.testing.assert_array_equal(acting.reward, rollout.reward[:, kept])
    np.testing.assert_array_equal(columns.observation["b"], others.observation["b"][:, kept])
    np.testing.assert_array_equal(columns.last_observation["b"], others.last_observation["b"][kept])
    np.testing.assert_array_equal(columns.initial_state, others.initial_state[kept])
    assert acting.final_index.tolist() == [[t, kept.index(b)] for t, b in rollout.final_index.tolist()]
    np.testing.assert_array_equal(columns.final_observation["a"], others.final_observation["a"])


@pytest.mark.parametrize("sequence", [{}, {"sequence_length": 2, "burn_in": 1}], ids=["rollouts", "sequences"])
@given(st.lists(PADDING, min_size=1, max_size=6), st.integers(0, 999))
@settings(max_examples=25)
def test_rollout_samples_mark_padding_and_keep_transitions(
    sequence: dict[str, int], paddings: list[list[int]], seed: int
):
    rng, known = np.random.default_rng(seed), {}
    buffer = make_buffer(n_rollout_steps=T, batch_size=1, entry="rollouts", capacity=60, **sequence)
    world = World(T, has_reset_rows=False)
    for n_padded in paddings:
        world.n_envs = len(n_padded)
        rollout, played = play_padded(world, n_padded, rng)
        assert buffer.insert(rollout) == sum(n < T for n in n_padded)
        known |= {step.observation: step for step in played}
    if not known:
        return
    for _ in range(20):
        sample = on_host(buffer.sample(1))
        columns = sample.substeps[FLAT_SUBSTEP]
        numbers = columns.observation["a"][:, 0, 0]
        finals = {t: i for i, (t, _) in enumerate(sample.final_index.tolist())}
        begun = False
        for t, valid in enumerate(sample.valid[:, 0].tolist()):
            assert valid or not begun, "nothing but the front is padded"
            begun |= valid
            if not valid:
                continue
            step = known[int(numbers[t])]
            assert sample.reward[t, 0] == step.reward
            if t in finals:
                following = columns.final_observation["a"][finals[t], 0]
            else:
                following = numbers[t + 1] if t + 1 < len(numbers) else columns.next_observation["a"][0, 0]
            assert following == step.next_observation
        if not sequence:
            assert begun, "who never acted makes no entry"


def planned_one_by_one(rollout: Rollout, n_previous: int) -> RowPlan:
    """The brute-force twin: trajectory by trajectory, step by step."""
    source, ends, row_of, previous = [], [], {}, []
    cells = set(map(tuple, rollout.final_index.tolist()))
    for b in range(rollout.n_envs):
        has_begun = False
        for _ in range(n_previous):
            previous.append(len(source))
            source.append(-1)
        for t in range(rollout.n_steps):
            has_begun |= rollout.valid is None or bool(rollout.valid[t, b])
            if has_begun:
                source.append(t * rollout.n_envs + b)
            if (t, b) in cells and t < rollout.n_steps - 1:
                row_of[t, b] = len(source)
                source.append(-1)
        ends.append(len(source))
        row_of[rollout.n_steps - 1, b] = len(source)
        source.append(-1)
    finals = [row_of[cell] for cell in map(tuple, rollout.final_index.tolist())]
    return RowPlan(np.array(source), np.array(ends), np.array(finals, np.int64), np.array(previous, np.int64))


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("n_finals", [0, 1, 7])
@pytest.mark.parametrize("n_previous", [0, 1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_a_plan_is_the_same_as_one_made_step_by_step(seed: int, n_previous: int, n_finals: int, has_reset_rows: bool):
    rng = np.random.default_rng(seed)
    # in any order, and some twice, as a foreign actor might send them
    cells = [(int(rng.integers(T)), int(rng.integers(B))) for _ in range(n_finals)]
    valid = rng.random((T, B)) < 0.7 if has_reset_rows else None
    rollout = make_rollout(n_steps=T, n_envs=B, final_index=cells, valid=valid)
    terminated = np.zeros((T, B), np.bool_)
    for cell in cells:
        terminated[cell] = True
    got = plan_rows(dataclasses.replace(rollout, terminated=terminated), n_previous=n_previous)
    for mine, expected in zip(got, planned_one_by_one(rollout, n_previous), strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert (got.source >= 0).sum() + len(set(got.ends.tolist())) + len(
        {cell for cell in cells if cell[0] < T - 1}
    ) + B * n_previous == len(got.source)


def test_a_plan_of_long_episodes_is_made_once():
    assert plan_rows(make_rollout(n_steps=T)).source is plan_rows(make_rollout(n_steps=T, sequence=2)).source
