import dataclasses

import numpy as np
import pytest

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidTensorError
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import rollout_to_proto
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.value_check import ValueCheck
from tests.rollouts import NESTED, random_rollout

T, N_ENVS = 4, 2


def rollout_of(key: str) -> Rollout:
    n_agents = NESTED[key].n_agents
    rollout = random_rollout(NESTED, T, N_ENVS, key=key)
    return dataclasses.replace(rollout, env_seeds=tuple(np.repeat([70, 71], n_agents).tolist()))


def spoilt(key: str, column: str, path: str, index: tuple[int, ...], value: float) -> Rollout:
    rollout = rollout_of(key)
    target = rollout.reward if column == "reward" else getattr(rollout.substeps[key], column)
    target = target[path] if isinstance(target, dict) else target
    target[index] = value
    return rollout


@pytest.mark.parametrize("key", NESTED)
def test_accepts_valid_rollout(key: str):
    ValueCheck(NESTED)(rollout_of(key))


@pytest.mark.parametrize(
    ("key", "column", "path", "index", "value", "message"),
    [
        (
            "0",
            "reward",
            "",
            (2, 1),
            np.nan,
            "reward holds nan at (t, b) = (2, 1), of environment 1 (seed 71); expected",
        ),
        ("0", "observation", "token", (0, 0), 9, "0/observation/token holds 9 at (t, b) = (0, 0), of environment 0 (s"),
        ("0", "last_observation", "vector", (1, 2), np.inf, "0/last_observation/vector holds inf at (b) = (1), elem"),
        (
            "0",
            "action",
            "",
            (3, 1, 0),
            5,
            "0/action holds 5 at (t, b) = (3, 1), element [0], of environment 1 (seed 71)",
        ),
        (
            "1",
            "observation",
            "",
            (1, 4),
            -np.inf,
            "1/observation holds -inf at (t, b) = (1, 4), of environment 1 (seed 7",
        ),
        ("1", "log_prob", "", (1, 2), np.nan, "1/log_prob holds nan at (t, b) = (1, 2), of environment 0 (seed 70)"),
    ],
)
def test_rejects_invalid_value_with_the_learners_message(
    key: str, column: str, path: str, index: tuple[int, ...], value: float, message: str
):
    rollout = spoilt(key, column, path, index, value)
    with pytest.raises(InvalidTensorError) as mine:
        ValueCheck(NESTED)(rollout)
    assert f"actor 'a', rollout 1: column {message}" in str(mine.value)
    with pytest.raises(InvalidTensorError) as theirs:
        RolloutAssembler(RolloutShape(NESTED, T, N_ENVS)).add(_request(rollout))
    assert str(theirs.value) == str(mine.value)


def test_error_in_final_observation_names_its_environment():
    rollout = spoilt("0", "final_observation", "vector", (1, 0), np.nan)
    b = int(rollout.final_index[1][1])
    with pytest.raises(
        InvalidTensorError, match=rf"holds nan at \(final\) = \(1\), .*of environment {b} \(seed 7{b}\)"
    ):
        ValueCheck(NESTED)(rollout)


def _request(rollout: Rollout) -> object:
    from rollcast.v1 import rollout_pb2

    return rollout_pb2.StreamRolloutsRequest(rollout=rollout_to_proto(rollout))
