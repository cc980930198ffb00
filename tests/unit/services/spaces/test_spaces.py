import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.errors import InvalidSpaceError, SpacesMismatchError
from rollcast.services.spaces.spaces import (
    SubstepSpaces,
    check_action_space_supported,
    check_spaces_match,
    describe_space,
    flatten_observation,
    leaf_order,
    space_leaves,
    unflatten_observation,
)

BOX = spaces.Box(0, 1, (2,), np.float32)
NESTED = spaces.Dict([("z", BOX), ("camera", spaces.Dict(left=BOX)), ("pair", spaces.Tuple([spaces.Discrete(3), BOX]))])


def test_leaves_keep_the_order_of_the_space():
    assert list(space_leaves(NESTED)) == ["z", "camera/left", "pair/0", "pair/1"]
    assert space_leaves(BOX) == {"": BOX}


def test_flatten_and_unflatten_are_inverse_for_one_and_for_a_batch():
    sample = NESTED.sample()
    flat = flatten_observation(NESTED, sample)
    assert list(flat) == list(space_leaves(NESTED))
    assert flat["camera/left"] is sample["camera"]["left"]  # nothing is copied
    again = unflatten_observation(NESTED, flat)
    assert again["camera"]["left"] is sample["camera"]["left"]
    assert int(again["pair"][0]) == int(sample["pair"][0])
    batch = {"z": np.ones((5, 2)), "camera": {"left": np.zeros((5, 2))}, "pair": (np.arange(5), np.ones((5, 2)))}
    assert {path: len(leaf) for path, leaf in flatten_observation(NESTED, batch).items()} == dict.fromkeys(flat, 5)


def test_rejects_missing_leaf_by_name():
    with pytest.raises(InvalidSpaceError, match="no leaf 'camera/left'"):
        unflatten_observation(NESTED, {"z": np.zeros(2)})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), "Text"),
        (spaces.Sequence(BOX), "Sequence"),
        (spaces.Graph(BOX, None), "Graph"),
        (spaces.OneOf([BOX]), "OneOf"),
        (spaces.Dict({"a/b": BOX}), "'a/b'.*without '/'"),
        (spaces.Dict({"": BOX}), "''"),
        (spaces.Dict([(3, BOX)]), "key 3"),
        (spaces.Dict(), "empty"),
        (spaces.Dict(a=spaces.Tuple([])), "at 'a' is empty"),
    ],
)
def test_rejects_unsupported_space_by_name(space, message):
    with pytest.raises(InvalidSpaceError, match=message):
        space_leaves(space)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(2), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3), spaces.Box(-1, 1, (2,))]
)
def test_accepts_supported_action_spaces(space):
    check_action_space_supported(space, where="the learner")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        *((space, "") for space in (spaces.Box(0, 9, (2,), np.int32), spaces.Dict(a=BOX), spaces.Text(3))),
        *(
            (spaces.Box(-1, 1, shape), ".*, which has no element; expected at least one; give it an action")
            for shape in ((0,), (3, 0))
        ),
    ],
)
def test_rejects_other_action_spaces(space, message):
    with pytest.raises(InvalidSpaceError, match=f"the action space of the learner is{message}"):
        check_action_space_supported(space, where="the learner")


def environment(observation, action=None):
    return {"0": SubstepSpaces(observation=observation, action=action or spaces.Discrete(2))}


def match(expected, offered):
    check_spaces_match(expected, offered, expected_side="the learner", offered_side="actor 'x'")


def test_equal_spaces_match():
    match(environment(NESTED), environment(NESTED))
    match(environment(spaces.MultiBinary(3)), environment(spaces.MultiBinary([3])))


def test_names_match_in_any_order():
    expected = environment(spaces.Dict([("a", BOX), ("b", BOX)])) | {"1": environment(BOX)["0"]}
    offered = {"1": environment(BOX)["0"]} | environment(spaces.Dict([("b", BOX), ("a", BOX)]))
    match(expected, offered)
    assert leaf_order(expected) == [("0", "a"), ("0", "b"), ("1", "")]
    assert leaf_order(offered) == [("1", ""), ("0", "b"), ("0", "a")]


@pytest.mark.parametrize(
    ("expected", "offered", "message"),
    [
        (
            environment(spaces.Dict(camera=BOX)),
            environment(spaces.Dict(camera=spaces.Box(0, 1, (3,)))),
            r"spaces differ at 0/observation/camera: the learner has Box\(0.0, 1.0, \(2,\).*, actor 'x' has Box\(0",
        ),
        (environment(BOX), environment(spaces.Box(0, 1, (2,), np.float64)), "at 0/observation: .*float32.*float64"),
        (environment(BOX, spaces.Discrete(2)), environment(BOX, spaces.Discrete(3)), r"at 0/action: .*Discrete\(2\)"),
        (
            environment(spaces.Dict([("a", BOX), ("b", BOX)])),
            environment(spaces.Dict([("b", BOX), ("c", BOX)])),
            r"members \['a', 'b'\], actor 'x' has members \['b', 'c'\]",
        ),
        (environment(BOX), environment(spaces.Dict(a=BOX)), "at 0/observation: .*Box.*Dict"),
        (environment(spaces.Tuple([BOX])), environment(spaces.Tuple([BOX, BOX])), r"members \['0'\]"),
        (
            environment(BOX),
            {**environment(BOX), "1": environment(BOX)["0"]},
            r"at the substeps: .*\['0'\].*\['0', '1'\]",
        ),
        (
            environment(BOX),
            {"0": SubstepSpaces(observation=BOX, action=spaces.Discrete(2), n_agents=3)},
            "0/n_agents: .*1.*3",
        ),
    ],
)
def test_differences_name_the_path_and_both_sides(expected, offered, message):
    with pytest.raises(SpacesMismatchError, match=message):
        match(expected, offered)


def test_descriptions_fit_on_a_line():
    text = describe_space(
        spaces.Box(np.random.default_rng(0).random((90, 90)), np.full((90, 90), 2.0), dtype=np.float64)
    )
    assert len(text) <= 200
    assert "\n" not in text
