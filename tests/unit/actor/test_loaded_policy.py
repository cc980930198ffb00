import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from rollcast.actor import EnvironmentFactory, TorchPolicy, load_policy, probe_spaces
from rollcast.services import (
    ConfigurationError,
    EnvironmentSpaces,
    InvalidInputError,
    InvalidTensorError,
    PolicySpec,
    SavedPolicy,
    SubstepSpaces,
)
from rollcast.services.policies.saved import encode_saved_policy

CARTPOLE = probe_spaces(EnvironmentFactory("CartPole-v1"))
ROBOT = {
    "pick": SubstepSpaces(observation=Dict({"arm": Box(-1, 1, (3,)), "item": Discrete(5)}), action=Box(-1, 1, (2,))),
    "place": SubstepSpaces(observation=Box(-1, 1, (2,)), action=Discrete(4)),
}


def save(
    path: Path,
    spaces: EnvironmentSpaces,
    spec: PolicySpec | None = None,
    *,
    with_spaces: bool = True,
    **arrays: np.ndarray,
) -> Path:
    """Writes a policy with fresh weights, some of them given."""
    spec = spec or PolicySpec(hidden_sizes=(8,))
    state = {**TorchPolicy(spaces, spec).state_arrays(), **arrays}
    saved = SavedPolicy(
        spec=spec,
        state=state,
        policy_version=3,
        env_steps=99,
        mean_return=1.5,
        spaces=spaces if with_spaces else None,
    )
    path.write_bytes(encode_saved_policy(saved))
    return path


def test_run_directory_gives_its_best_policy_or_the_last(tmp_path: Path):
    save(tmp_path / "policy_last.safetensors", CARTPOLE)
    save(tmp_path / "policy_best.safetensors", CARTPOLE, PolicySpec(hidden_sizes=(9,)))
    assert load_policy(tmp_path).saved.spec.hidden_sizes == (9,)
    last = load_policy(str(tmp_path), name="last").saved
    assert (last.spec.hidden_sizes, last.policy_version, last.env_steps, last.mean_return) == ((8,), 3, 99, 1.5)


def test_plays_an_episode_of_cartpole(tmp_path: Path):
    # pushes the cart to the side that the pole falls to
    weights = {
        "networks.0.layers.0.weight": np.array([[0, 0, 1, 0.5]], np.float32),
        "networks.0.layers.0.bias": np.zeros(1, np.float32),
        "networks.0.layers.1.weight": np.array([[-1], [1]], np.float32),
        "networks.0.layers.1.bias": np.zeros(2, np.float32),
    }
    policy = load_policy(save(tmp_path / "p.safetensors", CARTPOLE, PolicySpec(hidden_sizes=(1,)), **weights))
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    length, ended = 0, False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(policy.act(observation, deterministic=True))
        length, ended = length + 1, terminated or truncated
    env.close()
    assert length > 150


def test_acts_on_one_observation_as_on_a_batch_of_them(tmp_path: Path):
    policy = load_policy(save(tmp_path / "p.safetensors", CARTPOLE))
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    batch = policy.act(observations, deterministic=True)
    assert (batch.shape, batch.dtype) == ((64,), np.int64)
    assert {0, 1} == set(batch.tolist())
    singles = [policy.act(observation, deterministic=True) for observation in observations]
    assert all(CARTPOLE["0"].action.contains(action) for action in singles)
    np.testing.assert_array_equal(batch, singles)


def test_drawn_actions_follow_the_seed(tmp_path: Path):
    path = save(tmp_path / "p.safetensors", CARTPOLE)
    observations = np.zeros((200, 4), np.float32)
    drawn = load_policy(path, seed=5).act(observations)
    assert set(drawn.tolist()) == {0, 1}
    policy = load_policy(path, seed=6)
    assert (policy.act(observations) != drawn).any()
    policy.seed(5)
    np.testing.assert_array_equal(policy.act(observations), drawn)


@pytest.mark.parametrize("head", ["default", "squashed_gaussian"])
def test_box_actions_are_inside_the_bounds(tmp_path: Path, head: str):
    pendulum = probe_spaces(EnvironmentFactory("Pendulum-v1"))
    arrays = {} if head == "squashed_gaussian" else {"log_std.0": np.full(1, 3.0, np.float32)}
    policy = load_policy(save(tmp_path / "p.safetensors", pendulum, PolicySpec(head=head), **arrays))
    actions = policy.act(np.zeros((500, 3), np.float32))
    assert (actions.shape, actions.dtype) == ((500, 1), np.float32)
    assert np.abs(actions).max() <= 2.0
    if head == "default":
        assert (np.abs(actions) == 2.0).any(), "a Gaussian of this width leaves the bounds, and is clipped"
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy.act(observation))
    env.close()


def test_q_values_explore_with_the_lowest_rate(tmp_path: Path):
    spec = PolicySpec(head="q_values", hidden_sizes=(8,))
    rates = {"exploration.epsilons": np.array([1.0, 0.0], np.float32)}
    policy = load_policy(save(tmp_path / "p.safetensors", CARTPOLE, spec, **rates))
    observations = np.zeros((100, 4), np.float32)
    np.testing.assert_array_equal(policy.act(observations), policy.act(observations, deterministic=True))


def test_each_substep_acts_on_its_own_nested_observation(tmp_path: Path):
    policy = load_policy(save(tmp_path / "p.safetensors", ROBOT))
    assert list(policy.spaces) == ["pick", "place"]
    seen = {"arm": np.array([0.1, 0.2, 0.3]), "item": 4}
    action = policy.act(seen, substep_key="pick", deterministic=True)
    assert ROBOT["pick"].action.contains(action)
    both = {"arm": np.stack([seen["arm"]] * 2), "item": np.array([4, 4])}
    acted = policy.act(both, substep_key="pick", deterministic=True)
    np.testing.assert_allclose(acted, np.stack([action] * 2), rtol=1e-5)
    assert policy.act([0.5, -0.5], substep_key="place", deterministic=True) in range(4)
    with pytest.raises(InvalidInputError, match=r"substep_key is None; expected one of \['pick', 'place'\]"):
        policy.act(seen)
    with pytest.raises(InvalidInputError, match="substep_key is 'drop'"):
        policy.act(seen, substep_key="drop")


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"arm": np.zeros(3)}, r"cannot be flattened: KeyError: 'item'; expected a value of Dict"),
        (np.zeros(4), "a ndarray that cannot be flattened: IndexError"),
        ({"arm": np.zeros(4), "item": 1}, r"at 'arm' has shape \[4\]; expected \[3\], or a batch"),
        ({"arm": np.zeros((0, 3)), "item": np.zeros(0, int)}, r"at 'arm' has shape \[0, 3\]; .*at least one"),
        ({"arm": np.zeros((2, 3)), "item": 1}, r"at 'item' has shape \[\], and an earlier leaf has \[2\] rows"),
        ({"arm": np.zeros(3), "item": 1.5}, "at 'item' is float64; expected int64"),
        ({"arm": np.zeros(3), "item": 5}, r"at 'item' holds 5 .*expected 0 to 4"),
        ({"arm": np.array([0, np.nan, 0]), "item": 1}, "at 'arm' holds nan .*expected finite numbers"),
    ],
)
def test_rejects_observation_that_does_not_fit(tmp_path: Path, observation: object, message: str):
    policy = load_policy(save(tmp_path / "p.safetensors", ROBOT))
    with pytest.raises(InvalidTensorError, match=message):
        policy.act(observation, substep_key="pick")


def test_rejects_path_without_a_policy(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"there is no .*nowhere; expected a run directory"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"policy_best.safetensors does not exist"):
        load_policy(tmp_path)


def test_file_without_spaces_asks_for_them(tmp_path: Path):
    path = save(tmp_path / "p.safetensors", CARTPOLE, with_spaces=False)
    with pytest.raises(ConfigurationError, match=r"has no spaces: it is older.*spaces=probe_spaces\("):
        load_policy(path)
    assert load_policy(path, spaces=CARTPOLE).act(np.zeros(4), deterministic=True) in (0, 1)


def test_network_that_the_file_names_is_imported_only_when_it_is_given(tmp_path: Path):
    spec = PolicySpec(network="examples.own_network:make")
    path = save(tmp_path / "p.safetensors", CARTPOLE, spec)
    with pytest.raises(ConfigurationError, match=r"network 'examples.own_network:make'; expected 'auto'; if you trust"):
        load_policy(path)
    policy = load_policy(path, network="examples.own_network:make")
    assert policy.act(np.zeros(4), deterministic=True) in (0, 1)


def test_mlp_acts_where_torch_is_not_installed(tmp_path: Path):
    path = save(tmp_path / "p.safetensors", CARTPOLE)
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['grpc'] = None\n"
        "from rollcast.actor import load_policy\n"
        f"print(load_policy({str(path)!r}).act([0.0, 0.0, 0.1, 0.0], deterministic=True) in (0, 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("remembers", [{"recurrence": "lstm", "recurrent_size": 4}, {"frame_stack": 3}])
def test_policy_remembers_until_it_is_reset(tmp_path: Path, remembers):
    spec = PolicySpec(hidden_sizes=(8,), **remembers)
    rng = np.random.default_rng(0)
    shapes = {name: array.shape for name, array in TorchPolicy(CARTPOLE, spec).state_arrays().items()}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    policy = load_policy(save(tmp_path / "p.safetensors", CARTPOLE, spec, **weights))
    batch = rng.normal(size=(12, 2, 4)).astype(np.float32)
    episode = [policy.act(observation, deterministic=True).tolist() for observation in batch]
    without_memory = []
    for observation in batch:
        policy.reset()
        without_memory.append(policy.act(observation, deterministic=True).tolist())
    policy.reset()
    again = [policy.act(observation, deterministic=True).tolist() for observation in batch]
    assert episode == again != without_memory
    policy.reset()
    for observation in batch[:3]:
        policy.act(observation, deterministic=True)
    policy.reset([False, True])
    mixed = [policy.act(observation, deterministic=True).tolist() for observation in batch[3:]]
    policy.reset()
    begun = [policy.act(observation, deterministic=True).tolist() for observation in batch[3:]]
    assert [first for first, _ in mixed] == [first for first, _ in episode[3:]]
    assert [second for _, second in mixed] == [second for _, second in begun]
    assert begun != episode[3:]
    with pytest.raises(InvalidInputError, match=r"ended has shape \[3\]; expected \[2\]"):
        policy.reset([True, False, False])
    with pytest.raises(InvalidInputError, match="there are 1 observations, and there were 2 in the last act"):
        policy.act(batch[0, 0])
    policy.reset()
    assert policy.act(batch[0, 0], deterministic=True) == episode[0][0]
