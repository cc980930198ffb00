"""Rollouts made up from spaces, for tests of everything that carries them."""

import dataclasses

import numpy as np
from gymnasium import spaces

from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout, SubstepColumns
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces, space_leaves

NESTED: EnvironmentSpaces = {
    "0": SubstepSpaces(
        observation=spaces.Dict(
            [
                ("vector", spaces.Box(-1, 1, (3,), np.float32)),
                ("camera", spaces.Dict([("left", spaces.Box(0, 255, (8, 8, 3), np.uint8))])),
                ("token", spaces.Discrete(5, start=-2)),
                ("pair", spaces.Tuple([spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3], start=[1, 0])])),
            ]
        ),
        action=spaces.MultiDiscrete([3, 4]),
    ),
    "1": SubstepSpaces(
        observation=spaces.Box(-1, 1, (), np.float64), action=spaces.Box(-1, 1, (2,), np.float32), n_agents=3
    ),
}


def example_leaf(space, leading, rng):
    schema = leaf_schema(space)
    shape = (*leading, *schema.shape)
    if schema.n_values is not None:
        n_values = np.broadcast_to(np.asarray(schema.n_values), shape)
        return (rng.integers(0, n_values) + np.asarray(schema.low)).astype(schema.dtype).reshape(shape)
    if schema.dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(schema.dtype)
    return np.asarray(rng.integers(0, 100, shape)).astype(schema.dtype)


def example_rollout(
    environment: EnvironmentSpaces, n_steps: int, n_envs: int, *, key="0", n_final: int = 2, seed: int = 0, **changes
) -> Rollout:
    """A rollout of one substep."""
    rng = np.random.default_rng(seed)
    substep = environment[key]
    n_envs *= substep.n_agents
    where = rng.choice(n_steps * n_envs, n_final, replace=False)
    leaves = space_leaves(substep.observation)
    columns = SubstepColumns(
        observation={path: example_leaf(leaf, (n_steps, n_envs), rng) for path, leaf in leaves.items()},
        action=example_leaf(substep.action, (n_steps, n_envs), rng),
        log_prob=-rng.random((n_steps, n_envs), np.float32),
        last_observation={path: example_leaf(leaf, (n_envs,), rng) for path, leaf in leaves.items()},
        final_observation={path: example_leaf(leaf, (n_final,), rng) for path, leaf in leaves.items()},
    )
    rollout = Rollout(
        actor_id="a",
        incarnation=1,
        sequence=1,
        policy_version=3,
        substeps={key: columns},
        reward=rng.standard_normal((n_steps, n_envs), np.float32),
        terminated=rng.random((n_steps, n_envs)) < 0.1,
        truncated=rng.random((n_steps, n_envs)) < 0.1,
        valid=None,
        final_index=np.stack(np.divmod(where, n_envs), axis=1).astype(np.int32),
        episodes=(EpisodeStatistics(env_index=0, episode_return=2.5, n_steps=7),),
        env_seeds=tuple(range(n_envs)),
    )
    return dataclasses.replace(rollout, **changes)


def assert_same_rollout(actual: Rollout, expected: Rollout) -> None:
    """Values, dtypes, shapes and the order of paths."""
    for field in dataclasses.fields(Rollout):
        mine, theirs = getattr(actual, field.name), getattr(expected, field.name)
        if field.name == "substeps":
            assert list(mine) == list(theirs)
            for key in mine:
                for column in dataclasses.fields(SubstepColumns):
                    assert_same(getattr(mine[key], column.name), getattr(theirs[key], column.name))
        else:
            assert_same(mine, theirs)


def assert_same(actual, expected) -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for path, value in expected.items():
            assert_same(actual[path], value)
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected, strict=True)
    else:
        assert actual == expected
