"""The builders of rollouts for every test: of given columns, of numbers that tell their place, and of random values."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from google.protobuf.proto import parse_length_prefixed
from gymnasium import spaces

from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.rollouts.recording_codec import RecordingHeader, recording_header_from_proto
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, Observation, SubstepSpaces, space_leaves
from rollcast.v1 import recording_pb2
from tests.fuzz.messages import join_pieces, split_pieces

CARTPOLE_LIKE: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(observation=spaces.Box(-10, 10, (4,), np.float32), action=spaces.Discrete(2))
}
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


def build_rollout(
    *,
    observation: Observation,
    action: np.ndarray,
    last_observation: Observation,
    final_observation: Observation | None = None,
    log_prob: np.ndarray | None = None,
    final_index: np.ndarray | Sequence[tuple[int, int]] = (),
    initial_state: np.ndarray | None = None,
    previous_observation: Observation | None = None,
    key: str = FLAT_SUBSTEP,
    **fields: object,
) -> Rollout:
    """Returns a rollout of one substep with these columns [T, B, ...]; nothing ends and all is valid, unless given.

    Args:
        observation: Path -> [T, B, ...].
        action: [T, B, ...].
        last_observation: Path -> [B, ...].
        final_observation: Path -> [N, ...]; none by default.
        log_prob: [T, B]; zeros by default.
        final_index: N pairs (t, b).
        initial_state: [B, S] of a recurrent policy; none by default.
        previous_observation: Path -> [B, K - 1, ...] of a policy with a frame stack; none by default.
        key: The substep.
        fields: The other fields of the rollout.
    """
    shape = action.shape[:2]
    columns = SubstepColumns(
        observation=dict(observation),
        action=action,
        log_prob=np.zeros(shape, np.float32) if log_prob is None else log_prob,
        last_observation=dict(last_observation),
        final_observation={path: leaf[:0] for path, leaf in last_observation.items()}
        if final_observation is None
        else dict(final_observation),
        initial_state=initial_state,
        previous_observation=previous_observation,
    )
    made: dict[str, object] = {
        "actor_id": "a",
        "incarnation": 1,
        "sequence": 1,
        "policy_version": 1,
        "substeps": {key: columns},
        "valid": None,
        "final_index": np.array(final_index, np.int32).reshape(-1, 2),
        "episodes": (),
        "env_seeds": tuple(range(shape[1])),
        **fields,
    }
    for name, dtype in (("reward", np.float32), ("terminated", np.bool_), ("truncated", np.bool_)):
        if name not in made:
            made[name] = np.zeros(shape, dtype)
    return Rollout(**made)  # type: ignore[arg-type]


def always() -> bool:
    """Says that the stream of a rollout is there."""
    return True


def make_rollout(
    sequence: int = 1,
    *,
    n_steps: int = 3,
    n_envs: int = 2,
    final_index: Sequence[tuple[int, int]] = (),
    **fields: object,
) -> Rollout:
    """Returns a rollout of `CARTPOLE_LIKE` in which every number tells its place: 1000 * sequence + 10 * t + b."""
    t, b = np.meshgrid(np.arange(n_steps), np.arange(n_envs), indexing="ij")
    number = (1000 * sequence + 10 * t + b).astype(np.float32)
    environments = np.array([[b] for _, b in final_index], np.float32).reshape(-1, 1)
    given: dict[str, object] = {
        "reward": number,
        "episodes": tuple(EpisodeStatistics(env_index=b, episode_return=float(b), n_steps=5) for _, b in final_index),
        **fields,
    }
    return build_rollout(
        observation={"": np.repeat(number[..., None], 4, axis=-1)},
        action=number.astype(np.int64) % 2,
        log_prob=-number / 1000,
        last_observation={"": np.full((n_envs, 4), 1000 * sequence + 500, np.float32)},
        final_observation={"": np.repeat(7.0 + environments, 4, axis=1)},
        final_index=final_index,
        sequence=sequence,
        **given,
    )


def random_rollout(
    environment: EnvironmentSpaces,
    n_steps: int,
    n_envs: int,
    *,
    key: str = "0",
    n_final: int = 2,
    state_size: int = 0,
    frame_stack: int = 1,
    seed: int = 0,
    **fields: object,
) -> Rollout:
    """Returns a rollout of any spaces: random values, `n_final` final observations, one episode.

    Args:
        environment: The spaces.
        n_steps: T.
        n_envs: Environments; B is this times the agents of the substep.
        key: The substep.
        n_final: Final observations, at random places.
        state_size: S of the policy that acted; 0: it has no state.
        frame_stack: K of the policy that acted.
        seed: Of all values.
        fields: Fields of the rollout that are not random.
    """
    rng = np.random.default_rng(seed)
    substep = environment[key]
    leaves = space_leaves(substep.observation)
    shape = n_steps, n_envs * substep.n_agents
    where = rng.choice(shape[0] * shape[1], n_final, replace=False)
    given: dict[str, object] = {
        "policy_version": 3,
        "reward": rng.standard_normal(shape, np.float32),
        "terminated": rng.random(shape) < 0.1,
        "truncated": rng.random(shape) < 0.1,
        "episodes": (EpisodeStatistics(env_index=0, episode_return=2.5, n_steps=7),),
        **fields,
    }
    earlier = np.random.default_rng((seed, 1))
    previous = {path: random_leaf(leaf, (shape[1], frame_stack - 1), earlier) for path, leaf in leaves.items()}
    return build_rollout(
        observation={path: random_leaf(leaf, shape, rng) for path, leaf in leaves.items()},
        action=random_leaf(substep.action, shape, rng),
        log_prob=-rng.random(shape, np.float32),
        last_observation={path: random_leaf(leaf, shape[1:], rng) for path, leaf in leaves.items()},
        final_observation={path: random_leaf(leaf, (n_final,), rng) for path, leaf in leaves.items()},
        final_index=np.stack(np.divmod(where, shape[1]), axis=1),
        initial_state=earlier.standard_normal((shape[1], state_size), np.float32) if state_size else None,
        previous_observation=previous if frame_stack > 1 else None,
        key=key,
        **given,
    )


def random_leaf(space: gymnasium.Space, leading: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Returns random values [*leading, ...] of one leaf of a space."""
    schema = leaf_schema(space)
    shape = (*leading, *schema.shape)
    if schema.n_values is not None:
        n_values = np.broadcast_to(np.asarray(schema.n_values), shape)
        return (rng.integers(0, n_values) + np.asarray(schema.low)).astype(schema.dtype).reshape(shape)
    if schema.dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(schema.dtype)
    return np.asarray(rng.integers(0, 100, shape)).astype(schema.dtype)


def only_leaf(leaves: Observation, index: Any) -> tuple[float, ...]:
    """Reads an observation of one leaf: its numbers."""
    (leaf,) = leaves.values()
    return tuple(leaf[index].tolist())


def transitions_of(
    rollout: Rollout, trajectory: int, read: Callable[[Observation, Any], Any] = only_leaf
) -> Iterator[tuple[Any, Any, float, bool, bool]]:
    """Yields (observation, next observation, reward, terminated, truncated) of every valid row, as a learner reads it.

    Args:
        rollout: Of one substep.
        trajectory: The column.
        read: Returns the observation at an index of leaves by path.
    """
    (columns,) = rollout.substeps.values()
    finals = {tuple(index): row for row, index in enumerate(rollout.final_index.tolist())}
    for t in range(rollout.n_steps):
        ends = bool(rollout.terminated[t, trajectory]), bool(rollout.truncated[t, trajectory])
        if rollout.valid is not None and not rollout.valid[t, trajectory]:
            assert (t, trajectory) not in finals
            assert ends == (False, False)
            continue
        if (t, trajectory) in finals:
            following = read(columns.final_observation, finals[t, trajectory])
        elif t + 1 < rollout.n_steps:
            following = read(columns.observation, (t + 1, trajectory))
        else:
            following = read(columns.last_observation, trajectory)
        yield read(columns.observation, (t, trajectory)), following, float(rollout.reward[t, trajectory]), *ends


def assert_same_rollout(actual: Rollout, expected: Rollout, *, log_prob_atol: float = 0.0) -> None:
    """Compares values, dtypes, shapes and the order of paths; log-probabilities may differ by a rounding."""
    for field in dataclasses.fields(Rollout):
        mine, theirs = getattr(actual, field.name), getattr(expected, field.name)
        if field.name == "substeps":
            assert list(mine) == list(theirs)
            for key in mine:
                for column in dataclasses.fields(SubstepColumns):
                    one, other = getattr(mine[key], column.name), getattr(theirs[key], column.name)
                    if column.name == "log_prob" and log_prob_atol:
                        np.testing.assert_allclose(one, other, rtol=1e-5, atol=log_prob_atol, strict=True)
                    else:
                        _assert_same(one, other)
        else:
            _assert_same(mine, theirs)


def _assert_same(actual: object, expected: object) -> None:
    if isinstance(expected, Mapping):
        assert isinstance(actual, Mapping)
        assert list(actual) == list(expected)
        for path, value in expected.items():
            _assert_same(actual[path], value)
    elif isinstance(expected, np.ndarray):
        assert isinstance(actual, np.ndarray)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected, strict=True)
    else:
        assert actual == expected


def header_of(path: Path) -> RecordingHeader:
    """The header of a file of rollouts."""
    with path.open("rb") as file:
        return recording_header_from_proto(parse_length_prefixed(recording_pb2.RecordingHeader, file))


def without_digests(recording: bytes) -> bytes:
    """Returns a file of rollouts as versions before the digests wrote it."""
    return join_pieces(message[:-9] for message in split_pieces(recording))
