import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.exploration import EPSILONS, UNIFORM, Exploration
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import InvalidTensorError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicySpec
from tests.unit.actor.acting_policies import VECTOR, batch_of, spaces_of, state_of

WEIGHT, DEVIATION = "networks.0.layers.0.weight", "log_std.0"
MEAN, VARIANCE, COUNT = (f"normalization.0.{name}" for name in ("mean", "variance", "count"))
# Policies with all that a state may have.
GAUSSIAN = spaces_of(action=spaces.Box(-1.0, 1.0, (2,), np.float32)), PolicySpec(hidden_sizes=(8,))
VALUES = spaces_of(), PolicySpec(hidden_sizes=(8,), head="q_values")
NORMALISED = spaces_of(), PolicySpec(hidden_sizes=(8,), normalize_observations=True)


def spoilt(shape, value, dtype=np.float32):
    """An array whose second number is wrong."""
    array = np.zeros(shape, dtype)
    array.flat[1] = value
    return array


def count(number):
    return np.array(number, np.int64)


# Changes of a state, and the message about each. None: an array is left out.
MISMATCHES = [
    (GAUSSIAN, {WEIGHT: None}, r"lack \['networks.0.layers.0.weight'\]"),
    (GAUSSIAN, {"critic": np.zeros(1)}, r"have \['critic'\] in addition"),
    (GAUSSIAN, {WEIGHT: np.zeros((9, 4), np.float32)}, r"is float32\[9, 4\]; expected float32\[8, 4\]"),
    (GAUSSIAN, {WEIGHT: np.zeros((8, 4))}, r"is float64\[8, 4\]; expected float32\[8, 4\]"),
    (NORMALISED, {MEAN: None, VARIANCE: None, COUNT: None}, r"lack \['normalization.0.count'"),
    (VALUES, {UNIFORM: None}, r"has \['exploration.epsilons'\]; expected"),
    (VALUES, {EPSILONS: None}, r"has \['exploration.uniform'\]; expected"),
    (VALUES, {UNIFORM: np.array(1.0, np.float32)}, r"uniform is float32\[\]"),
    (VALUES, {UNIFORM: np.array(2, np.uint8)}, r"uniform is uint8\[\] 2"),
    (VALUES, {EPSILONS: np.zeros(1)}, r"epsilons is float64\[1\]"),
    (VALUES, {EPSILONS: np.zeros(0, np.float32)}, r"epsilons is float32\[0\]"),
    (VALUES, {EPSILONS: spoilt(2, np.nan)}, "expected rates in"),
    (VALUES, {WEIGHT: np.zeros((1, 1), np.float32), EPSILONS: np.ones(1, np.float32)}, "weight 'networks"),
]
NUMBERS = [
    (GAUSSIAN, {WEIGHT: spoilt((8, 4), np.nan)}, rf"weight '{WEIGHT}' holds nan at \[0, 1\]; expected finite numbers"),
    (GAUSSIAN, {WEIGHT: spoilt((8, 4), np.inf)}, rf"weight '{WEIGHT}' holds inf at \[0, 1\]; expected finite numbers"),
    (GAUSSIAN, {DEVIATION: spoilt(2, -np.inf)}, rf"weight '{DEVIATION}' holds -inf at \[1\]; expected finite numbers"),
    (NORMALISED, {MEAN: spoilt(4, np.inf, float)}, f"'{MEAN}'.*inf.*expected finite numbers"),
    (NORMALISED, {MEAN: spoilt(4, np.nan, float)}, f"'{MEAN}'.*nan.*expected finite numbers"),
    (
        NORMALISED,
        {MEAN: spoilt(4, -1e39, float)},
        rf"'{MEAN}' holds -1e\+39; expected finite numbers in float32's range",
    ),
    (
        NORMALISED,
        {VARIANCE: spoilt(4, -1e-9, float)},
        f"'{VARIANCE}' holds -1e-09; expected finite numbers of at least 0",
    ),
    (NORMALISED, {VARIANCE: spoilt(4, np.inf, float)}, f"'{VARIANCE}'.*inf.*expected finite numbers"),
    (NORMALISED, {COUNT: count(-1)}, f"'{COUNT}' holds -1; expected finite numbers of at least 0"),
]


@pytest.mark.parametrize("kind", [NumpyMlpPolicy, TorchActingPolicy])
@pytest.mark.parametrize(
    ("acts", "change", "error", "message"),
    [
        *((acts, change, ProtocolMismatchError, message) for acts, change, message in MISMATCHES),
        *((acts, change, InvalidTensorError, message) for acts, change, message in NUMBERS),
    ],
)
def test_rejects_a_wrong_state_and_keeps_the_last(kind, acts, change, error, message):
    substeps, spec = acts
    good = dict(state_of(substeps, spec))
    if spec.head == "q_values":
        good[EPSILONS] = np.array([0.25], np.float32)
    policy = kind(substeps, spec, seed=0)
    policy.load(1, good)
    batch = batch_of(VECTOR, 4)
    before = policy.act(batch, deterministic=True)[1].copy()
    bad = {name: array for name, array in (good | change).items() if array is not None}
    with pytest.raises(error, match=message):
        policy.load(2, bad)
    if change.keys() <= {UNIFORM, EPSILONS}:
        with pytest.raises(error, match=message):
            TorchPolicy(substeps, spec).load_state_arrays(bad)
    assert policy.version == 1
    assert policy.exploration == Exploration(epsilon=0.25 if spec.head == "q_values" else 0.0)
    np.testing.assert_array_equal(policy.act(batch, deterministic=True)[1], before)


def test_accepts_finite_weights_whose_sum_overflows():
    substeps, spec = spaces_of(), PolicySpec(hidden_sizes=(16, 8))
    policy = NumpyMlpPolicy(substeps, spec, seed=0)
    policy.load(1, {name: np.full_like(array, 3e38) for name, array in state_of(substeps, spec).items()})
    assert policy.version == 1


class Masked(torch.nn.Module):
    """A network of one's own with a mask that is infinite, as attention has it."""

    def __init__(self, observation_space, n_outputs):
        super().__init__()
        self.layer = torch.nn.Linear(4, n_outputs)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, observation):
        return self.layer(observation[""]) + torch.exp(self.mask).sum()


def test_buffer_of_own_network_may_be_infinite_but_not_nan():
    network = f"{__name__}:Masked"
    substeps, spec = spaces_of(), PolicySpec(network=network)
    policy = make_policy(substeps, spec, seed=0, allowed_network=network)
    state = dict(TorchPolicy(substeps, spec).state_arrays())
    policy.load(1, state)
    state["networks.0.mask"] = np.array([np.nan, 0.0], np.float32)
    with pytest.raises(InvalidTensorError, match=r"weight 'networks\.0\.mask' holds nan at \[0\]"):
        policy.load(2, state)
