import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.publisher import PolicyPublisher
from rollcast.services.errors import InvalidInputError, NotReadyError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.rollouts import CARTPOLE_LIKE

SPEC = PolicySpec(hidden_sizes=(4,))


def make_publisher() -> tuple[PolicyPublisher, TorchPolicy]:
    return PolicyPublisher(CARTPOLE_LIKE, SPEC, seed=0), TorchPolicy(CARTPOLE_LIKE, SPEC)


def test_versions_count_from_one_and_each_is_encoded_once():
    publisher, policy = make_publisher()
    assert publisher.version == 0
    assert [publisher.publish(policy.state_arrays()) for _ in range(3)] == [1, 2, 3]
    first, again = publisher.newest(), publisher.newest()
    assert first is again
    assert first.version == 3


def test_waiting_gives_the_newest_and_skips_those_between():
    publisher, policy = make_publisher()
    assert publisher.wait_newer(0, 0.0) is None
    received = []
    waiter = threading.Thread(target=lambda: received.append(publisher.wait_newer(0, 10.0)))
    waiter.start()
    publisher.publish(policy.state_arrays())
    waiter.join(10)
    assert received[0].version == 1
    publisher.publish(policy.state_arrays())
    publisher.publish(policy.state_arrays())
    assert publisher.wait_newer(1, 0.0).version == 3
    assert publisher.wait_newer(3, 0.0) is None


def test_the_end_wakes_those_who_wait():
    publisher, _ = make_publisher()
    received = []
    waiter = threading.Thread(target=lambda: received.append(publisher.wait_newer(0, 60.0)))
    waiter.start()
    publisher.end()
    waiter.join(10)
    assert received == [None]
    assert publisher.ended


def test_act_keeps_to_action_masks():
    observation = spaces.Dict({"action_mask": spaces.MultiBinary(4), "cell": spaces.Discrete(3)})
    masked = {FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=spaces.Discrete(4))}
    publisher = PolicyPublisher(masked, SPEC, seed=0)
    publisher.publish(TorchPolicy(masked, SPEC).state_arrays())
    mask = np.tile(np.array([[0, 1, 1, 0], [1, 0, 0, 0]], np.int8), (500, 1))
    for deterministic in (True, False):
        leaves = {"action_mask": mask, "cell": np.zeros(1000, np.int64)}
        action, _ = publisher.act(leaves, substep_key=FLAT_SUBSTEP, deterministic=deterministic)
        assert mask[np.arange(1000), action].all()
    assert set(action[::2].tolist()) == {1, 2}


@pytest.mark.parametrize("deterministic", [True, False], ids=["likeliest", "drawn"])
def test_act_answers_with_actions_inside_the_space_of_every_substep(deterministic):
    box, wide = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(0.0, np.inf, (), np.float64)
    position = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    substeps = {
        "move": SubstepSpaces(observation=position, action=box),
        "take": SubstepSpaces(observation=position, action=wide),
        "wait": SubstepSpaces(observation=position, action=spaces.MultiDiscrete([2, 3], start=[5, -1])),
    }
    publisher = PolicyPublisher(substeps, SPEC, seed=0)
    publisher.publish(TorchPolicy(substeps, SPEC).state_arrays())
    rows = np.random.default_rng(0).normal(0.0, 5.0, (200, 3)).astype(np.float32)
    for key, substep in substeps.items():
        action, _ = publisher.act({"": rows}, substep_key=key, deterministic=deterministic)
        assert action.dtype == substep.action.dtype
        assert all(substep.action.contains(np.asarray(row)) for row in action)


def test_act_uses_the_newest_version():
    publisher, policy = make_publisher()
    observation = {"": np.zeros((3, 4), np.float32)}
    with pytest.raises(NotReadyError, match="no policy yet"):
        publisher.act(observation, substep_key=FLAT_SUBSTEP, deterministic=True)
    for bias, best in (((5.0, 0.0), 0), ((0.0, 5.0), 1)):
        state = {name: np.zeros_like(array) for name, array in policy.state_arrays().items()}
        state[max(name for name in state if name.endswith("bias"))] = np.array(bias, np.float32)
        version = publisher.publish(state)
        action, acted = publisher.act(observation, substep_key=FLAT_SUBSTEP, deterministic=True)
        assert action.tolist() == [best] * 3
        assert acted == version
    with pytest.raises(InvalidInputError, match="substep_key 'x' does not exist"):
        publisher.act(observation, substep_key="x", deterministic=True)


def test_act_normalises_by_the_moments_of_the_newest_version():
    spec = PolicySpec(hidden_sizes=(4,), normalize_observations=True)
    publisher, policy = PolicyPublisher(CARTPOLE_LIKE, spec, seed=0), TorchPolicy(CARTPOLE_LIKE, spec)
    (leaf,) = policy.normalized({"": torch.zeros(1, 4)}).values()
    assert not leaf.any()
    with torch.no_grad():
        policy.networks[FLAT_SUBSTEP].layers[-1].weight.mul_(100.0)  # decided actions
    x = np.random.default_rng(0).normal(1000.0, 1.0, (64, 4)).astype(np.float32)
    for _ in range(2):
        publisher.publish(policy.state_arrays())
        with torch.no_grad():
            expected = policy.parameters_of({"": torch.from_numpy(x)}).argmax(dim=1).numpy()
        action, _ = publisher.act({"": x}, substep_key=FLAT_SUBSTEP, deterministic=True)
        np.testing.assert_array_equal(action, expected)
        policy.observe({"": torch.from_numpy(x)}, torch.ones(64, dtype=torch.bool), 64)
    assert 0 < expected.sum() < 64, "after the first version all observations were beyond the clip"


def test_act_sees_the_frames_before_an_observation():
    spec = PolicySpec(hidden_sizes=(4,), frame_stack=3)
    publisher, policy = PolicyPublisher(CARTPOLE_LIKE, spec, seed=0), TorchPolicy(CARTPOLE_LIKE, spec)
    with torch.no_grad():
        policy.networks[FLAT_SUBSTEP].layers[-1].weight.mul_(100.0)  # decided actions
    publisher.publish(policy.state_arrays())
    frames = np.random.default_rng(0).normal(size=(64, 3, 4)).astype(np.float32)
    begun = frames[:, -1:].repeat(3, axis=1)
    chosen = []
    for previous, stack in (({"": frames[:, :-1]}, frames), (None, begun)):
        action, _ = publisher.act({"": frames[:, -1]}, substep_key=FLAT_SUBSTEP, deterministic=True, previous=previous)
        with torch.no_grad():
            expected = policy.parameters_of({"": torch.from_numpy(stack)}).argmax(dim=1).numpy()
        np.testing.assert_array_equal(action, expected)
        chosen.append(expected)
    assert (chosen[0] != chosen[1]).any()
