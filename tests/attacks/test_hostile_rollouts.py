"""Hostile rollouts: refused by an error that names actor, sequence and column."""

import tracemalloc

import numpy as np
import pytest

from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import (
    InvalidInputError,
    InvalidRolloutError,
    InvalidTensorError,
)
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.spaces.spaces import space_leaves
from rollcast.services.wire.tensors import tensor_to_proto
from rollcast.v1 import rollout_pb2, tensor_pb2
from tests.attacks.spoilt_rollouts import (
    B,
    T,
    assembler,
    message,
    refused,
    request_of,
    with_tensor,
)
from tests.rollouts import NESTED, random_leaf, random_rollout


@pytest.mark.parametrize(
    ("field", "array", "match"),
    [
        ("reward", np.zeros((T, B)), "column reward has dtype float64; expected float32"),
        ("reward", np.zeros((T + 1, B), np.float32), r"column reward has shape \[4, 2\]; expected \[3, 2\]"),
        ("reward", np.zeros((B, T), np.float32), "column reward has shape"),
        ("reward", np.zeros(T * B, np.float32), "column reward has shape"),
        ("terminated", np.zeros((T, B), np.uint8), "column terminated has dtype uint8; expected bool"),
        ("truncated", np.zeros((T, B, 1), np.bool_), "column truncated has shape"),
        ("valid", np.zeros((T, 1), np.bool_), "column valid has shape"),
        ("final_index", np.zeros((2, 2), np.int64), "column final_index has dtype int64; expected int32"),
        ("final_index", np.zeros((2, 3), np.int32), "column final_index has shape"),
        ("final_index", np.zeros((T * B + 1, 2), np.int32), "7 final observations; expected at most 6"),
        ("final_index", np.zeros((1, 2), np.int32), "final_observation"),
        ("final_index", np.array([[0, 0], [T, 0]], np.int32), r"holds \(t, b\) = \(3, 0\) in row 1"),
        ("final_index", np.array([[0, -1], [1, 0]], np.int32), r"holds \(t, b\) = \(0, -1\) in row 0"),
    ],
)
def test_columns_that_do_not_fit(field, array, match):
    refused(with_tensor(message(), field, array), match=f"actor 'a', rollout 1.*{match}")


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (None, "column 0/initial_state has dtype number 0"),
        (np.zeros((B, 5), np.float32), r"column 0/initial_state has shape \[2, 5\]; expected \[2, 4\]"),
        (np.zeros((B + 1, 4), np.float32), r"column 0/initial_state has shape \[3, 4\]"),
        (np.zeros((B, 4)), "column 0/initial_state has dtype float64"),
        (np.full((B, 4), np.nan, np.float32), r"column 0/initial_state holds nan at \(b\) = \(0\)"),
    ],
)
def test_recurrent_states_that_do_not_fit(array, match):
    request = message()
    if array is not None:
        request.rollout.substeps[0].initial_state.CopyFrom(tensor_to_proto(array))
    with pytest.raises(InvalidInputError, match=f"actor 'a', rollout 1.*{match}"):
        RolloutAssembler(RolloutShape(NESTED, T, B, state_size=4)).add(request)


def test_recurrent_state_that_nobody_asked_for():
    request = message()
    request.rollout.substeps[0].initial_state.CopyFrom(tensor_to_proto(np.zeros((B, 4), np.float32)))
    refused(
        request, InvalidRolloutError, "a column initial_state; expected none: the learner's policy is not recurrent"
    )


def with_previous(request, **changed):
    """Adds the two frames before; `vector`: another array for that leaf, or None to leave it out."""
    for path, leaf in space_leaves(NESTED["0"].observation).items():
        array = random_leaf(leaf, (B, 2), np.random.default_rng(0))
        if path in changed:
            array = changed[path]
        if array is not None:
            request.rollout.substeps[0].previous_observation.add(path=path).tensor.CopyFrom(tensor_to_proto(array))
    return request


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (None, "column previous_observation with paths"),
        (np.zeros((B, 1, 3), np.float32), r"column 0/previous_observation/.* has shape \[2, 1, 3\]; expected \[2, 2, "),
        (np.zeros((B, 2, 3)), "column 0/previous_observation/.* has dtype float64"),
        (
            np.full((B, 2, 3), np.inf, np.float32),
            r"column 0/previous_observation/vector holds inf at \(b, k\) = \(0, 0",
        ),
    ],
)
def test_frames_before_a_rollout_that_do_not_fit(array, match):
    with pytest.raises(InvalidInputError, match=f"actor 'a', rollout 1.*{match}"):
        RolloutAssembler(RolloutShape(NESTED, T, B, frame_stack=3)).add(with_previous(message(), vector=array))


def test_frames_before_a_rollout_that_nobody_asked_for():
    refused(
        with_previous(message()),
        InvalidRolloutError,
        "a column previous_observation; expected none: the learner's policy takes single frames",
    )
    request = with_previous(message())
    assert RolloutAssembler(RolloutShape(NESTED, T, B, frame_stack=3)).add(request) is not None


def test_columns_that_are_missing():
    for field in ("reward", "terminated", "truncated"):
        request = message()
        request.rollout.ClearField(field)
        refused(request, match=f"column {field} has dtype number 0")
    for field in ("action", "log_prob"):
        request = message()
        request.rollout.substeps[0].ClearField(field)
        refused(request, match=f"column 0/{field} has dtype number 0")
    for field in ("observation", "last_observation", "final_observation"):
        request = message()
        del getattr(request.rollout.substeps[0], field)[1]
        refused(request, InvalidRolloutError, f"column {field} with paths")
    request = message()
    request.rollout.ClearField("final_index")
    refused(request, match="final_observation.*expected .*0")


def test_paths_that_are_wrong_or_twice():
    request = message()
    request.rollout.substeps[0].observation[0].path = "elsewhere"
    refused(request, InvalidRolloutError, "'elsewhere'")
    request = message()
    request.rollout.substeps[0].observation[0].CopyFrom(request.rollout.substeps[0].observation[1])
    refused(request, InvalidRolloutError, "with paths")
    request = message()
    request.rollout.substeps[0].observation.add().CopyFrom(request.rollout.substeps[0].observation[0])
    refused(request, InvalidRolloutError, "with paths")


def test_substeps_that_are_missing_wrong_or_twice():
    for keys in (["2"], ["0", "1"], ["0", "2"], ["0", "0"], []):
        request = message()
        while len(request.rollout.substeps) < len(keys):
            request.rollout.substeps.add().CopyFrom(request.rollout.substeps[0])
        del request.rollout.substeps[len(keys) :]
        for substep, key in zip(request.rollout.substeps, keys, strict=True):
            substep.key = key
        refused(request, InvalidRolloutError, "substeps")


def test_the_trajectories_of_another_substep():
    """Substep "1" has three agents in each environment, "0" one."""
    for key, other, match in (("0", "1", r"\[3, 6\]; expected \[3, 2\]"), ("1", "0", r"\[3, 2\]; expected \[3, 6\]")):
        request = message(key=key)
        request.rollout.reward.CopyFrom(message(key=other).rollout.reward)
        refused(request, match=f"column reward has shape {match}")
    six = message(key="1")
    six.rollout.substeps[0].key = "0"
    refused(six, InvalidRolloutError, "6 env_seeds; expected 2")


def test_an_identity_that_is_not_the_streams():
    refused(message(actor_id="b"), InvalidRolloutError, "actor_id 'b'; expected 'a'")
    refused(message(incarnation=2), InvalidRolloutError, "incarnation 2; expected 1")
    refused(message(sequence=0), InvalidRolloutError, "sequence 0")


@pytest.mark.parametrize("version", [2**62 + 1, 2**63, 2**64 - 1])
def test_a_policy_version_that_no_batch_could_hold(version: int):
    refused(message(policy_version=version), InvalidRolloutError, f"policy version {version}; expected at most")


def test_statistics_that_cannot_be():
    for fields in ({"env_index": B}, {"episode_return": float("nan")}, {"episode_return": float("inf")}):
        request = message()
        request.rollout.episodes.add(**fields)
        refused(request, InvalidRolloutError, "an episode of environment")
    request = message()
    request.rollout.episodes.extend([rollout_pb2.EpisodeStatistics()] * (T * B + 1))
    refused(request, InvalidRolloutError, "episodes")
    request = message()
    request.rollout.env_seeds.append(1)
    refused(request, InvalidRolloutError, "3 env_seeds")


def test_policy_versions_that_cannot_be():
    request = message()
    request.rollout.policy_versions.extend([1] * (T * B - 1))
    refused(request, InvalidRolloutError, f"{T * B - 1} policy_versions; expected {T * B}, one a step, or none")
    request = message()
    request.rollout.policy_versions.extend([1] * (T * B - 1) + [-2])
    refused(request, InvalidRolloutError, rf"the policy version -2 at \(t, b\) = \({T - 1}, {B - 1}\), of environment")


STATISTIC = {"event": "parcel", "epoch": [{"name": "mean", "reduction": 1}]}


@pytest.mark.parametrize(
    ("declared", "values", "match"),
    [
        ([STATISTIC] * 257, [], "257 event_statistics; expected at most 256"),
        ([{"event": "parcel"}], [], r"'parcel' with 0 statistics of epochs; expected 1 to 256"),
        ([STATISTIC | {"epoch": STATISTIC["epoch"] * 257}], [], "with 257 statistics of epochs"),
        ([STATISTIC | {"event": ""}], [], "an event without a name"),
        ([STATISTIC | {"event": "x" * 129}], [], "of 129 characters; expected at most 128 printable"),
        ([STATISTIC | {"name": "a\x1b[2J"}], [], r"named 'a\\x1b\[2J'; expected at most 128 printable"),
        ([STATISTIC | {"epoch": [{"name": "\n"}]}], [], r"named '\\n'"),
        ([STATISTIC], [{"statistic": 1}], "event statistic 1; expected one below 1, which it declares"),
        ([], [{}], "event statistic 0; expected one below 0"),
        ([STATISTIC], [{}] * 1025, "1025 values of events in one episode; expected at most 1024"),
        ([STATISTIC], [{"value": float("nan")}], "an event whose value is nan; expected a finite value"),
        ([STATISTIC], [{"value": float("-inf")}], "an event whose value is -inf"),
        ([STATISTIC], [{"group": ["x"] * 9}], "grouped by 9 attributes; expected at most 8"),
        ([STATISTIC], [{"group": ["x" * 129]}], "groups named .* of 129 characters"),
        ([STATISTIC], [{"group": ["\u202e"]}], "groups named"),
    ],
)
@pytest.mark.parametrize("where", ["episode", "policy"])
def test_events_that_cannot_be(declared, values, match, where):
    request = message()
    request.rollout.event_statistics.extend([rollout_pb2.EventStatistic(**fields) for fields in declared])
    events = request.rollout.episodes.add().events if where == "episode" else request.rollout.events
    events.extend([rollout_pb2.EventValue(**fields) for fields in values])
    refused(request, InvalidRolloutError, f"actor 'a', rollout 1 has .*{match}")


def test_reductions_of_the_future_are_left_to_those_who_know_them():
    request = message()
    request.rollout.event_statistics.add(event="parcel").epoch.add(name="mode", reduction=99)
    request.rollout.events.add(value=1.0)
    (value,) = assembler().add(request).events
    assert value.statistic.epoch[0].reduction == "own"


@pytest.mark.parametrize("column", ["observation", "last_observation", "final_observation"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observations_that_are_not_finite(column, value):
    rollout = random_rollout(NESTED, T, B)
    leaf = getattr(rollout.substeps["0"], column)["vector"]
    leaf[1, ..., 2] = value
    refused(request_of(rollout), InvalidTensorError, f"actor 'a', rollout 1: column 0/{column}/vector holds {value} at")


def test_values_outside_a_discrete_range():
    for key, column, path, value, match in (
        (
            "0",
            "observation",
            "token",
            3,
            r"token holds 3 at \(t, b\) = \(1, 0\), of environment 0 \(seed \d+\); expected -2 to 2",
        ),
        ("0", "observation", "token", -(2**63), "token holds -9223372036854775808"),
        ("0", "observation", "pair/0", 2, r"pair/0 holds 2 at .*element \[0\], of environment 0 .*; expected 0 to 1"),
        ("0", "observation", "pair/1", 9, r"pair/1 holds 9"),
        ("0", "observation", "pair/1", -1, r"pair/1 holds -1"),
        ("0", "observation", "pair/1", -(2**63), r"pair/1 holds -9223372036854775808"),
        ("0", "observation", "pair/1", 2**63 - 1, r"pair/1 holds 9223372036854775807"),
        ("0", "last_observation", "token", 2**62, "token holds"),
        ("0", "action", None, 4, r"action holds 4 at \(t, b\) = \(1, 0\), element \[0\]"),
        ("0", "action", None, -1, "action holds -1"),
        ("1", "action", None, np.nan, r"action holds nan at \(t, b\) = \(1, 0\)"),
        ("1", "log_prob", None, -np.inf, r"log_prob holds -inf at \(t, b\) = \(1, 0\)"),
    ):
        rollout = random_rollout(NESTED, T, B, key=key)
        values = getattr(rollout.substeps[key], column)
        values = values if path is None else values[path]
        values[(1, 0) if column != "last_observation" else (1,)] = value
        refused(request_of(rollout), InvalidTensorError, f"actor 'a', rollout 1: column {key}.*{match}")


def test_bools_that_are_neither():
    request = message()
    request.rollout.terminated.data = b"\x03" * (T * B)
    refused(request, InvalidTensorError, "column terminated holds the byte 3")


@pytest.mark.parametrize(
    "shape", [[2**40, 2], [2**32, 2**32], [-3, -2], [3, 2] + [1] * 31, [2**63 - 1], [0], []], ids=str
)
@pytest.mark.parametrize("deferred", [True, False])
def test_huge_claims_cost_nothing(shape, deferred):
    for field in ("reward", "final_index"):
        request = message()
        dtype = tensor_pb2.DATA_TYPE_FLOAT32 if field == "reward" else tensor_pb2.DATA_TYPE_INT32
        getattr(request.rollout, field).CopyFrom(tensor_pb2.Tensor(dtype=dtype, shape=shape, deferred=deferred))
        tracemalloc.start()
        refused(request)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize("reduction", range(1, 8))
def test_values_as_large_as_floats_are_do_not_stop_who_reduces_them(reduction):
    """Found by tests.fuzz: the square of 1e200 raised OverflowError where the learner adds up its epoch."""
    request = message()
    request.rollout.event_statistics.add(event="parcel").epoch.add(name="all", reduction=reduction, cumulative=True)
    for value in (1e200, -1e200, 1.7e308, 1.7e308, 0.0):
        request.rollout.events.add(value=value)
    (rollout,) = [assembler().add(request)]
    aggregator = EpochStatsAggregator()
    for _ in range(2):
        aggregator.add_all(rollout.episodes, rollout.events)
        assert "parcel/all" in "".join(aggregator.epoch_stats())
