"""Exported policies: every kind does in onnxruntime what it does here, and what cannot be exported is refused."""

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rollcast.actor import LoadedPolicy, TorchPolicy
from rollcast.actor.exporting.check import TOLERANCE, Agreement, check_model
from rollcast.actor.exporting.model import PolicyModel, build_model
from rollcast.actor.exporting.players import PlayerName
from rollcast.services import ConfigurationError, PolicySpec, SavedPolicy, SubstepSpaces
from rollcast.services.errors import MismatchError

VECTOR = Box(-np.inf, np.inf, (5,), np.float32)
CAMERA = Box(0, 255, (40, 44, 3), np.uint8)
MIXED = Dict(
    {
        "item": Discrete(4, start=2),
        "grid": MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -3]]),
        "buttons": MultiBinary(3),
        "tiles": Box(0, 255, (2, 2), np.uint8),
        "clock": Box(-5, 5, (), np.float64),
        "nested": Tuple([Box(-3, 3, (1,), np.int32), VECTOR]),
    }
)
MASKED = Dict({"seen": VECTOR, "action_mask": Box(0, 1, (5,), np.int8)})

# The observation space, the action space, the policy, and the players that can play it.
OWN: tuple[PlayerName, ...] = ("rollcast",)
UNITY: tuple[PlayerName, ...] = ("rollcast", "mlagents")
ALL: tuple[PlayerName, ...] = ("rollcast", "mlagents", "godot")
POLICIES = {
    "discrete": (VECTOR, Discrete(3, start=-2), {"activation": "relu"}, ALL),
    "multi_discrete": (VECTOR, MultiDiscrete([2, 3], start=[1, 5]), {}, ALL),
    "multi_binary": (VECTOR, MultiBinary((2, 2)), {}, OWN),
    "box": (VECTOR, Box(-1.0, 0.5, (2, 2), np.float32), {}, ALL),
    "half_bounded_float64_scalars": (
        Box(-1, 1, (), np.float64),
        Box(-np.inf, 0.01, (), np.float64),
        {"hidden_sizes": ()},
        UNITY,
    ),
    "float16": (Box(-1, 1, (3,), np.float16), Box(-1, 1, (2,), np.float16), {"normalize_observations": True}, OWN),
    "sac_float16": (VECTOR, Box(-2, 2, (8,), np.float16), {"head": "squashed_gaussian"}, OWN),
    "sac": (VECTOR, Box(np.float32([-2, 0]), np.float32([3, 1e3])), {"head": "squashed_gaussian"}, UNITY),
    "dqn": (VECTOR, Discrete(4), {"head": "q_values"}, ALL),
    "dueling_masked": (
        Dict({"action_mask": MultiBinary(4), "seen": VECTOR}),
        Discrete(4),
        {"head": "dueling_q_values"},
        UNITY,
    ),
    "lstm_masked": (MASKED, MultiDiscrete([2, 3]), {"recurrence": "lstm", "recurrent_size": 7}, UNITY),
    "gru_stacked": (
        VECTOR,
        Box(-1, 1, (2,)),
        {"recurrence": "gru", "recurrent_size": 6, "frame_stack": 3, "normalize_observations": True},
        UNITY,
    ),
    "mixed_normalized": (MIXED, Discrete(2), {"normalize_observations": True, "observation_clip": 1.5}, OWN),
    "mixed_stacked": (MIXED, Discrete(2), {"normalize_observations": True, "frame_stack": 3}, OWN),
    "masked_stacked": (MASKED, Discrete(5), {"frame_stack": 2}, UNITY),
    "nature_cnn": (CAMERA, Discrete(3), {}, UNITY),
    "impala_shallow_stacked": (
        Dict({"camera": CAMERA, "speed": VECTOR}),
        Discrete(3),
        {"network": "impala_shallow", "frame_stack": 3, "recurrence": "lstm"},
        UNITY,
    ),
    "impala_resnet_channels_first": (
        Box(0, 255, (1, 40, 40), np.uint8),
        Discrete(3),
        {"network": "impala_resnet"},
        UNITY,
    ),
    "stacked_gray_images": (Box(0, 255, (36, 40), np.uint8), Discrete(3), {"frame_stack": 4}, UNITY),
    "images_as_vectors": (CAMERA, Discrete(3), {"network": "mlp", "hidden_sizes": (8,)}, UNITY),
    "network_of_ones_own": (
        VECTOR,
        Discrete(3),
        {"network": "tests.unit.actor.policies.own_networks:SumOfLeaves", "normalize_observations": True},
        OWN,
    ),
    "network_of_ones_own_stacked_masked": (
        Dict({"tiles": Box(0, 255, (2, 3), np.uint8), "action_mask": MultiBinary(3)}),
        Discrete(3),
        {"network": "tests.unit.actor.policies.own_networks:SumOfLeaves", "frame_stack": 2},
        OWN,
    ),
}
SLOW = {"nature_cnn", "impala_shallow_stacked", "impala_resnet_channels_first", "stacked_gray_images"}


def saved_policy(observation, action, **spec) -> SavedPolicy:
    """Returns a policy whose weights, means and deviations are noise."""
    torch.manual_seed(0)
    spaces = {"0": SubstepSpaces(observation=observation, action=action)}
    policy = TorchPolicy(spaces, PolicySpec(**{"hidden_sizes": (16,), **spec}))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for moments in policy.normalization.values():
            moments.mean.normal_()
            moments.variance.uniform_(0.1, 4.0)
    return SavedPolicy(
        spec=policy.spec, state=policy.state_arrays(), policy_version=7, env_steps=99, mean_return=None, spaces=spaces
    )


def exported(saved: SavedPolicy, names: PlayerName = "rollcast") -> tuple[PolicyModel, bytes]:
    model = build_model(saved, saved.spaces, "0", names)
    onnx.checker.check_model(model.proto, full_check=True)
    return model, model.proto.SerializeToString()


def agreement(saved: SavedPolicy, names: PlayerName = "rollcast", n: int = 300) -> Agreement:
    model, content = exported(saved, names)
    return check_model(content, model, saved, saved.spaces, "0", n, n_timed=10)


CASES = [
    pytest.param(kind, names, marks=pytest.mark.slow if kind in SLOW else ())
    for kind, (*_, players) in POLICIES.items()
    for names in players
]


@pytest.mark.parametrize(("kind", "names"), CASES)
def test_acts_as_the_policy_does(kind: str, names: PlayerName):
    observation, action, spec, _ = POLICIES[kind]
    # of images, of which each has thousands of numbers, fewer show as much
    n = 60 if kind in SLOW else 300
    found = agreement(saved_policy(observation, action, **spec), names, n)
    assert found.n_observations == n
    assert found.largest_difference <= TOLERANCE
    assert found.n_ties <= n // 100


def test_large_float64_numbers_keep_what_tells_them_apart():
    """As float32, all of these are one of two numbers."""
    saved = saved_policy(Box(-np.inf, np.inf, (2,), np.float64), Discrete(3), normalize_observations=True)
    moments = {"normalization.0.mean": np.full(2, 1e6), "normalization.0.variance": np.full(2, 1e-4)}
    found = agreement(dataclasses.replace(saved, state={**saved.state, **moments}))
    assert found.largest_difference <= TOLERANCE


class TestRollcastNames:
    def test_take_what_an_environment_gives_and_give_what_it_takes(self):
        saved = saved_policy(MIXED, Box(-1, 1, (2,), np.float64), frame_stack=2)
        model, content = exported(saved)
        session = onnxruntime.InferenceSession(content)
        assert [given.name for given in session.get_inputs()] == [
            *(f"observation/{path}" for path in ("buttons", "clock", "grid", "item", "nested/0", "nested/1", "tiles")),
            "state_in",
        ]
        assert [taken.name for taken in session.get_outputs()] == ["action", "parameters", "state_out"]
        policy, state = LoadedPolicy(saved, saved.spaces), np.zeros((1, model.state_size), np.float32)
        MIXED.seed(0)
        for _ in range(3):
            observation = MIXED.sample()
            leaves = {
                **{name: observation[name] for name in ("buttons", "clock", "grid", "item", "tiles")},
                "nested/0": observation["nested"][0],
                "nested/1": observation["nested"][1],
            }
            given = {f"observation/{path}": np.asarray(leaf)[None] for path, leaf in leaves.items()}
            action, _, state = session.run(None, {**given, "state_in": state})
            assert action.dtype == np.float64
            np.testing.assert_allclose(action[0], policy.act(observation, deterministic=True), rtol=1e-5, atol=1e-5)

    def test_metadata_names_the_version(self):
        model, _ = exported(saved_policy(VECTOR, Discrete(2)))
        assert {entry.key: entry.value for entry in model.proto.metadata_props} == {
            "rollcast.policy_version": "7",
            "rollcast.env_steps": "99",
            "rollcast.names": "rollcast",
        }

    def test_equal_policies_give_equal_files(self):
        saved = saved_policy(MASKED, MultiDiscrete([2, 3]), recurrence="gru", frame_stack=2)
        assert exported(saved)[1] == exported(saved)[1]


class TestGodotNames:
    def test_are_those_of_the_plugin(self):
        model, content = exported(saved_policy(VECTOR, MultiDiscrete([2, 3])), "godot")
        session = onnxruntime.InferenceSession(content)
        # as ONNXInference.cs calls it, and reads the number of its outputs
        assert session.get_outputs()[0].shape[1] == 5
        given = {"obs": np.ones((1, 5), np.float32), "state_ins": np.ones(1, np.float32)}
        output, state = session.run(["output", "state_outs"], given)
        # sync.gd takes the largest number of each key, above 0
        assert (sorted(output[0, :2]), sorted(output[0, 2:])) == ([0, 1], [0, 0, 1])
        assert state.tolist() == [1.0]
        assert [tensor.dtype for tensor in model.outputs] == [np.float32, np.float32]

    @pytest.mark.parametrize(
        ("observation", "action", "spec", "reason"),
        [
            (MASKED, Discrete(5), {}, "'action_mask'.*expected a single vector"),
            (Dict({"a": VECTOR, "b": VECTOR}), Discrete(2), {}, r"observations \['a', 'b'\]"),
            (CAMERA, Discrete(2), {}, "expected a single vector"),
            (VECTOR, Discrete(2), {"recurrence": "lstm"}, "a recurrent state or a frame stack"),
            (VECTOR, Discrete(2), {"frame_stack": 2}, "a recurrent state or a frame stack"),
            (VECTOR, Box(-2, 2, (1,)), {}, r"expected a Box within \[-1, 1\]"),
            (VECTOR, MultiBinary(2), {}, r"MultiBinary\(2\); expected Discrete, MultiDiscrete or Box"),
        ],
    )
    def test_what_the_plugin_cannot_play_is_refused(self, observation, action, spec, reason):
        with pytest.raises(ConfigurationError, match=f"Godot RL Agents cannot play.*{reason}"):
            exported(saved_policy(observation, action, **spec), "godot")


class TestMlAgentsNames:
    def test_are_those_of_its_player(self):
        saved = saved_policy(Dict({"camera": CAMERA, "speed": VECTOR}), MultiDiscrete([2, 3]), recurrence="lstm")
        _, content = exported(saved, "mlagents")
        session = onnxruntime.InferenceSession(content)
        shapes = {given.name: given.shape for given in session.get_inputs()}
        assert shapes == {
            "obs_0": ["N", 3, 40, 44],
            "obs_1": ["N", 5],
            "action_masks": ["N", 5],
            "recurrent_in": ["N", 1, 128],
        }
        given = {name: np.ones((2, *shape[1:]), np.float32) for name, shape in shapes.items()}
        given["action_masks"][:, 1] = given["action_masks"][:, 2:4] = 0
        found = dict(zip([taken.name for taken in session.get_outputs()], session.run(None, given), strict=True))
        # Unity reads indices as integers, and everything else as floats
        assert found["discrete_actions"].dtype == np.int64
        assert found["discrete_actions"].tolist() == [[0, 2], [0, 2]]
        assert found["deterministic_discrete_actions"].tolist() == [[0, 2], [0, 2]]
        assert found["recurrent_out"].shape == (2, 1, 128)
        # older releases look for them among the constants
        constants = {constant.name for constant in onnx.load_model_from_string(content).graph.initializer}
        for name, value in (
            ("version_number", [3.0]),
            ("memory_size", [128.0]),
            ("discrete_action_output_shape", [[2.0, 3.0]]),
        ):
            assert found[name].dtype == np.float32
            assert found[name].tolist() == value
            assert name in constants

    def test_actions_of_a_box(self):
        _, content = exported(saved_policy(VECTOR, Box(-1, 1, (2,))), "mlagents")
        session = onnxruntime.InferenceSession(content)
        assert [given.name for given in session.get_inputs()] == ["obs_0"]
        assert {taken.name for taken in session.get_outputs()} == {
            *("continuous_actions", "deterministic_continuous_actions", "continuous_action_output_shape"),
            *("version_number", "memory_size"),
        }

    @pytest.mark.parametrize(
        ("observation", "action", "spec", "reason"),
        [
            (Discrete(3), Discrete(2), {}, "expected observations of numbers"),
            (VECTOR, MultiBinary(2), {}, "expected Discrete, MultiDiscrete or Box"),
            (VECTOR, Discrete(2), {"network": "tests.networks:make_linear"}, "expected a built-in network"),
        ],
    )
    def test_what_it_cannot_play_is_refused(self, observation, action, spec, reason):
        with pytest.raises(ConfigurationError, match=f"ML-Agents cannot play.*{reason}"):
            exported(saved_policy(observation, action, **spec), "mlagents")


def test_more_frames_than_an_image_is_wide_are_refused():
    saved = saved_policy(Box(0, 255, (40, 36), np.uint8), Discrete(2), frame_stack=37)
    with pytest.raises(ConfigurationError, match=r"37 frames .* more than the width of an image"):
        exported(saved)


def test_a_network_that_torch_cannot_export_is_refused_by_name():
    saved = saved_policy(VECTOR, Discrete(2), network="tests.unit.actor.policies.own_networks:NotForOnnx")
    with pytest.raises(ConfigurationError, match=r"own_networks:NotForOnnx' cannot be exported to ONNX: .*fft"):
        exported(saved)


class TestCheck:
    def spoilt(self, saved: SavedPolicy, name: str, change: float) -> SavedPolicy:
        array = saved.state[name].copy()
        array.flat[0] += np.asarray(change, array.dtype)
        return dataclasses.replace(saved, state={**saved.state, name: array})

    @pytest.mark.parametrize(
        ("kind", "name", "what"),
        [
            ("discrete", "networks.0.layers.1.bias", "action|parameters"),
            ("box", "networks.0.layers.0.weight", "action"),
            ("box", "log_std.0", "parameters"),
            ("lstm_masked", "networks.0.recurrence.bias_hh_l0", "parameters|state"),
            ("gru_stacked", "normalization.0.mean", "action|parameters|state"),
        ],
    )
    def test_finds_a_weight_that_differs(self, kind: str, name: str, what: str):
        observation, action, spec, _ = POLICIES[kind]
        saved = saved_policy(observation, action, **spec)
        model, content = exported(saved)
        other = self.spoilt(saved, name, 0.01)
        with pytest.raises(
            MismatchError, match=f"the exported policy computes the ({what}) .*; expected .*; the difference is"
        ):
            check_model(content, model, other, saved.spaces, "0", 300)

    def test_finds_another_greedy_action(self):
        saved = saved_policy(VECTOR, Discrete(3))
        model, content = exported(saved, "godot")
        with pytest.raises(MismatchError, match="the exported policy computes the action"):
            check_model(content, model, self.spoilt(saved, "networks.0.layers.1.bias", 1.0), saved.spaces, "0", 300)

    def test_finds_a_difference_beside_forbidden_actions(self):
        saved = saved_policy(MASKED, Discrete(5))
        model, content = exported(saved)
        with pytest.raises(MismatchError):
            check_model(content, model, self.spoilt(saved, "networks.0.layers.1.bias", 1e-4), saved.spaces, "0", 300)

    def test_actions_that_are_equally_good_are_ties(self):
        saved = saved_policy(VECTOR, Discrete(3))
        zeros = {name: np.zeros_like(array) for name, array in saved.state.items()}
        assert agreement(dataclasses.replace(saved, state=zeros)).n_ties == 300
