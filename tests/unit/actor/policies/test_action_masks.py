"""Every policy keeps to action masks: numpy and torch, every head, exploring or not."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.action_masks import FORBIDDEN, action_mask_of
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.torch_action_masks import allowed_actions, forbid
from rollcast.actor.policies.torch_distributions import entropy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.errors import ActorFailedError, InvalidSpaceError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.unit.actor.acting_policies import loaded, noisy, state_of
from tests.unit.actor.acting_policies import spaces_of as flat_spaces

N = 10_000
SPEC = PolicySpec(hidden_sizes=(8,))
OWN = "tests.unit.actor.policies.own_networks:SeesItsMask"
ACTIONS = {
    "discrete": spaces.Discrete(6, start=-2, dtype=np.int32),
    "multi-discrete": spaces.MultiDiscrete([[2, 4], [1, 3]], start=[[1, 0], [5, -1]]),
}
DISCRETE_KINDS = ("q_values", "dueling_q_values")
KINDS = [
    (kind, action)
    for kind in ("numpy", "torch", "own", "uniform", "random", *DISCRETE_KINDS)
    for action in ACTIONS
    if action == "discrete" or kind not in DISCRETE_KINDS
]


def spaces_beside(**members: spaces.Space) -> dict[str, SubstepSpaces]:
    return flat_spaces(spaces.Dict(members), ACTIONS["discrete"])


def sizes_of(action: spaces.Space) -> list[int]:
    return [int(action.n)] if isinstance(action, spaces.Discrete) else action.nvec.ravel().tolist()


def spaces_of(action: spaces.Space, mask: spaces.Space | None = None) -> dict[str, SubstepSpaces]:
    n = sum(sizes_of(action))
    observation = spaces.Dict(
        {"seen": spaces.Box(-1.0, 1.0, (3,), np.float32), "action_mask": mask or spaces.Box(0, 1, (n,), np.int8)}
    )
    return flat_spaces(observation, action)


def acting(kind: str, action: str, epsilon: float = 0.3) -> Policy:
    substeps, spec = spaces_of(ACTIONS[action]), SPEC
    if kind == "random":
        return RandomPolicy(substeps, seed=0)
    if kind in DISCRETE_KINDS:
        spec = PolicySpec(hidden_sizes=(8,), head=kind)
    if kind == "own":
        spec = PolicySpec(network=OWN)
    made = {"numpy": NumpyMlpPolicy, "torch": TorchActingPolicy}.get(kind)
    policy = made(substeps, spec, seed=0) if made else make_policy(substeps, spec, seed=0, allowed_network=OWN)
    learning = noisy(substeps, spec, scale=1.0)
    if kind == "uniform":
        learning.set_uniform_exploration(True)
    if kind in DISCRETE_KINDS:
        learning.set_epsilons([epsilon])
    policy.load(1, learning.state_arrays())
    return policy


def observation_of(mask: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    seen = np.random.default_rng(seed).uniform(-1, 1, (len(mask), 3)).astype(np.float32)
    return {"seen": seen, "action_mask": mask.astype(np.int8)}


def elements(action_space: spaces.Space, action: np.ndarray) -> np.ndarray:
    """Actions as indices `[N, elements]`."""
    return action.reshape(len(action), -1) - np.ravel(action_space.start)


def chosen_bits(action_space: spaces.Space, mask: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Returns the mask's bit of each element's choice: `[N, elements]`."""
    offsets = np.cumsum([0, *sizes_of(action_space)[:-1]])
    return np.take_along_axis(mask, (elements(action_space, action) + offsets).astype(np.intp), axis=1)


def random_masks(action: str, n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = []
    for size in sizes_of(ACTIONS[action]):
        part = rng.integers(0, 2, (n, size))
        part[np.arange(n), rng.integers(0, size, n)] = 1
        parts.append(part)
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(("kind", "action"), KINDS)
def test_never_chooses_what_the_mask_of_its_row_forbids(kind, action):
    policy, space, rows = acting(kind, action), ACTIONS[action], random_masks(action, N)
    for deterministic in (False, True):
        chosen, parameters = policy.act(observation_of(rows), deterministic=deterministic)
        assert chosen.dtype == space.dtype
        assert chosen.shape == (N, *space.shape)
        assert chosen_bits(space, rows, chosen).all()
        assert np.isfinite(policy.log_prob(parameters, chosen)).all()


@pytest.mark.parametrize("kind", [kind for kind, action in KINDS if action == "discrete"])
def test_frequencies_match_probabilities_that_sum_to_one(kind):
    policy, mask = acting(kind, "discrete"), np.array([1, 0, 1, 1, 0, 1])
    seen = np.tile(np.float32([[0.1, -0.2, 0.3]]), (N, 1))
    chosen, parameters = policy.act({"seen": seen, "action_mask": np.tile(mask, (N, 1)).astype(np.int8)})
    every = np.arange(-2, 4, dtype=np.int32)
    p = np.exp(policy.log_prob(parameters[:6].copy(), every).astype(np.float64))
    assert p.sum() == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_array_equal(p[mask == 0], 0.0 if kind not in DISCRETE_KINDS else pytest.approx(0.0, abs=1e-30))
    counts = np.bincount(chosen + 2, minlength=6)[mask == 1]
    expected = N * p[mask == 1]
    # The 99.99 % quantile of chi-square with 3 degrees of freedom is 21.1.
    assert ((counts - expected) ** 2 / expected).sum() < 21.1


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", ["uniform", "random"])
def test_uniform_log_probs_count_allowed_actions(kind, action):
    rows = random_masks(action, 50)
    policy = acting(kind, action)
    chosen, parameters = policy.act(observation_of(rows))
    ends = np.cumsum(sizes_of(ACTIONS[action]))[:-1]
    n_allowed = np.prod([part.sum(axis=1) for part in np.split(rows, ends, axis=1)], axis=0)
    np.testing.assert_allclose(policy.log_prob(parameters, chosen), -np.log(n_allowed), rtol=1e-5, atol=1e-6)
    folded = policy.log_prob(parameters.reshape(5, 10, -1), chosen.reshape(5, 10, *ACTIONS[action].shape))
    np.testing.assert_allclose(folded.ravel(), -np.log(n_allowed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", DISCRETE_KINDS)
def test_epsilon_greedy_explores_allowed_actions(head):
    policy = acting(head, "discrete", epsilon=0.3)
    rows = np.tile([1, 0, 1, 0, 1, 0], (5, 1))
    chosen, parameters = policy.act(observation_of(rows), deterministic=True)
    np.testing.assert_allclose(policy.log_prob(parameters, chosen), math.log(0.7 + 0.1), rtol=1e-5)
    other = np.where(chosen == -2, 0, -2).astype(np.int32)
    np.testing.assert_allclose(policy.log_prob(parameters, other), math.log(0.1), rtol=1e-5)
    assert (policy.log_prob(parameters, other + 1) < -80.0).all()
    assert policy.exploration.epsilon == np.float32(0.3)


@pytest.mark.parametrize("action", ACTIONS)
def test_entropy_and_gradient_cover_allowed_actions_only(action):
    space = ACTIONS[action]
    rows = random_masks(action, 7)
    rows[0] = 1
    observation = {path: torch.from_numpy(leaf) for path, leaf in observation_of(rows).items()}
    raw = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    parameters = forbid(raw, allowed_actions(action_mask_of(spaces_of(space)["0"]), observation))
    h = entropy(space, parameters)
    # by hand, element by element
    for row, logits in enumerate(raw.detach().double().numpy()):
        expected, start = 0.0, 0
        for size in sizes_of(space):
            allowed = logits[start : start + size][rows[row, start : start + size] == 1]
            p = np.exp(allowed - allowed.max())
            p /= p.sum()
            expected -= (p * np.log(p)).sum()
            start += size
        assert h[row].item() == pytest.approx(expected, abs=1e-5)
    first = torch.tensor(np.where(rows == 1, 1, 0).argmax(axis=1))
    (h.sum() + parameters.gather(1, first[:, None]).sum()).backward()
    assert torch.isfinite(raw.grad).all()
    assert (raw.grad[torch.from_numpy(rows == 0)] == 0.0).all()
    assert (raw.grad[torch.from_numpy(rows == 1)] != 0.0).any()


@pytest.mark.parametrize(("kind", "action"), KINDS)
def test_mask_of_zeros_allows_every_action(kind, action):
    policy, space = acting(kind, action), ACTIONS[action]
    rows = np.zeros((400, sum(sizes_of(space))), np.int8)
    chosen, parameters = policy.act(observation_of(rows))
    assert all(space.contains(one if space.shape else one[()]) for one in chosen)
    assert np.isfinite(policy.log_prob(parameters, chosen)).all()
    if kind in ("uniform", "random"):
        assert len(np.unique(elements(space, chosen), axis=0)) == math.prod(sizes_of(space))


def test_torch_ignores_mask_of_zeros_element_by_element():
    policy = TorchPolicy(spaces_of(ACTIONS["multi-discrete"]), SPEC)
    rows = np.zeros((4, 10))
    rows[:, 2] = 1  # one element may choose, the others not
    parameters = policy.parameters_of({path: torch.from_numpy(leaf) for path, leaf in observation_of(rows).items()})
    assert (parameters[:, 2:6] == FORBIDDEN).sum() == 4 * 3
    assert (parameters[:, [0, 1, 6, 7, 8, 9]] > FORBIDDEN).all()
    assert torch.isfinite(entropy(ACTIONS["multi-discrete"], parameters)).all()


@pytest.mark.parametrize(
    "mask",
    [spaces.Box(0, 1, (6,), dtype) for dtype in (np.int8, np.uint8, np.bool_, np.int64)] + [spaces.MultiBinary(6)],
)
def test_accepts_masks_of_every_binary_space(mask):
    substeps = spaces_of(ACTIONS["discrete"], mask)
    policy = loaded(substeps, SPEC)
    rows = random_masks("discrete", 200).astype(mask.dtype)
    chosen, _ = policy.act({"seen": np.zeros((200, 3), np.float32), "action_mask": rows})
    assert chosen_bits(ACTIONS["discrete"], rows, chosen).all()


def test_mask_is_not_a_feature():
    substeps = spaces_of(ACTIONS["discrete"])
    state = state_of(substeps, SPEC)
    assert state["networks.0.layers.0.weight"].shape == (8, 3)
    unmasked = make_policy(spaces_beside(seen=substeps["0"].observation["seen"]), SPEC, seed=0)
    unmasked.load(1, state)
    observation = observation_of(random_masks("discrete", 20))
    _, expected = unmasked.act({"seen": observation["seen"]})
    _, parameters = loaded(substeps, SPEC).act(observation)
    np.testing.assert_array_equal(parameters, np.where(observation["action_mask"], expected, np.float32(FORBIDDEN)))


SEEN, BITS = spaces.Discrete(2), spaces.MultiBinary(6)
BAD = {
    "shape (5,)": ({"a": SEEN, "action_mask": spaces.MultiBinary(5)}, r"Box\(0, 1, \(6,\), int8\)"),
    "float": ({"a": SEEN, "action_mask": spaces.Box(0, 1, (6,), np.float32)}, "expected zeros and ones"),
    "range": ({"a": SEEN, "action_mask": spaces.Box(0, 2, (6,), np.int8)}, "expected zeros and ones"),
    "discrete": ({"a": SEEN, "action_mask": spaces.Discrete(6)}, "expected zeros and ones"),
    "alone": ({"action_mask": BITS}, "beside the observation"),
    "deep": ({"a": spaces.Dict({"action_mask": BITS}), "b": SEEN}, r"\['a/action_mask'\].*topmost Dict"),
    "no leaf": ({"a": SEEN, "action_mask": spaces.Tuple((BITS,))}, r"\['action_mask/0'\].*topmost Dict"),
}


@pytest.mark.parametrize(("members", "message"), BAD.values(), ids=BAD)
def test_rejects_leaf_named_action_mask_that_is_not_a_mask(members, message):
    substeps = spaces_beside(**members)
    for make in (
        lambda: make_policy(substeps, SPEC, seed=0),
        lambda: RandomPolicy(substeps, seed=0),
        lambda: TorchPolicy(substeps, SPEC),
    ):
        with pytest.raises(InvalidSpaceError, match=message):
            make()


@pytest.mark.parametrize("action", [spaces.MultiBinary(3), spaces.Box(-1, 1, (3,), np.float32)])
def test_rejects_mask_for_actions_that_are_not_discrete(action):
    observation = spaces.Dict({"a": SEEN, "action_mask": spaces.MultiBinary(3)})
    with pytest.raises(InvalidSpaceError, match="expected a mask only with Discrete or MultiDiscrete"):
        make_policy(flat_spaces(observation, action), SPEC, seed=0)


def test_rejects_mask_of_zeros_on_transitions_but_not_on_reset_rows():
    mask = action_mask_of(spaces_of(ACTIONS["multi-discrete"])["0"])
    rows = np.ones((3, 4, 10), np.int8)
    mask.check_transitions({"action_mask": rows}, None)
    rows[1, 2, 2:6] = 0
    valid = np.ones((3, 4), bool)
    with pytest.raises(ActorFailedError, match="environment 2 allows no action for element 1 in step 1"):
        mask.check_transitions({"action_mask": rows}, valid)
    valid[1, 2] = False
    mask.check_transitions({"action_mask": rows}, valid)
