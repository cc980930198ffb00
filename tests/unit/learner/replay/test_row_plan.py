import dataclasses

import numpy as np
import pytest

from learner.replay.row_plan import RowPlan, plan_rows
from services.rollouts import Rollout
from tests.rollout_samples import make_rollout

T, B = 5, 4


def planned_one_by_one(rollout: Rollout) -> RowPlan:
    """The brute-force twin: trajectory by trajectory, step by step."""
    source, ends, row_of = [], [], {}
    cells = set(map(tuple, rollout.final_index.tolist()))
    for b in range(rollout.n_envs):
        for t in range(rollout.n_steps):
            if t or rollout.valid is None or rollout.valid[0, b]:
                source.append(t * rollout.n_envs + b)
            if (t, b) in cells and t < rollout.n_steps - 1:
                row_of[t, b] = len(source)
                source.append(-1)
        ends.append(len(source))
        row_of[rollout.n_steps - 1, b] = len(source)
        source.append(-1)
    finals = [row_of[cell] for cell in map(tuple, rollout.final_index.tolist())]
    return RowPlan(np.array(source), np.array(ends), np.array(finals, np.int64))


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("n_finals", [0, 1, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_the_same_as_one_made_step_by_step(seed: int, n_finals: int, has_reset_rows: bool):
    rng = np.random.default_rng(seed)
    # in any order, and some twice, as a foreign actor might send them
    cells = [(int(rng.integers(T)), int(rng.integers(B))) for _ in range(n_finals)]
    valid = rng.random((T, B)) < 0.7 if has_reset_rows else None
    rollout = make_rollout(n_steps=T, n_envs=B, final_index=cells, valid=valid)
    terminated = np.zeros((T, B), np.bool_)
    for cell in cells:
        terminated[cell] = True
    got = plan_rows(dataclasses.replace(rollout, terminated=terminated))
    for mine, expected in zip(got, planned_one_by_one(rollout), strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert (got.source >= 0).sum() + len(set(got.ends.tolist())) + len(
        {cell for cell in cells if cell[0] < T - 1}
    ) == len(got.source)


def test_a_plan_of_long_episodes_is_made_once():
    assert plan_rows(make_rollout(n_steps=T)).source is plan_rows(make_rollout(n_steps=T, sequence=2)).source
