"""Simulators that live on a device: their rollouts are those of the same simulator through numpy, without a wait."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv

from examples.batched_simulator import BatchedCartPole, BatchedReacher
from rollcast.actor.environments.device import device_of
from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory, make_single_env
from rollcast.actor.policies.torch_distributions import log_prob
from rollcast.actor.policies.torch_sampling import sample
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.make import make_worker
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.accelerator import Accelerator
from tests.rollouts import assert_same_rollout
from tests.unit.actor.acting_policies import loaded
from tests.unit.actor.workers import flat_workers

MLP = PolicySpec(hidden_sizes=(8,))
LSTM = PolicySpec(hidden_sizes=(8,), recurrence="lstm", recurrent_size=4)


class NestedCartPole(BatchedCartPole):
    """A simulator whose observation is nested, with short episodes."""

    max_steps = 7
    single_observation_space = Dict(
        body=Dict(place=Box(-np.inf, np.inf, (2,), np.float32), pole=Box(-np.inf, np.inf, (2,), np.float32)),
        age=Discrete(8),
    )

    def _see(self):
        place, pole = self._state.split(2, dim=1)
        return {"age": self._age.clone(), "body": {"place": place.clone(), "pole": pole.clone()}}


class LaterReset(BatchedCartPole):
    """A simulator that resets in the step after the end."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - gymnasium's
    max_steps = 7

    def reset(self, *, seed=None, options=None):
        self._over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        self._state, reward, terminated = self._advance(actions)
        self._age += 1
        self._state = torch.where(self._over[:, None], self._begin(), self._state)
        self._age.masked_fill_(self._over, 0)
        terminated, reward = terminated & ~self._over, reward.masked_fill(self._over, 0.0)
        truncated = (self._age >= self.max_steps) & ~terminated & ~self._over
        self._over = terminated | truncated
        return self._see(), reward, terminated, truncated, {}


class ThroughNumpy(VectorEnv):
    """The same simulator as others see it: arrays in, arrays out."""

    def __init__(self, simulator):
        self.simulator, self.num_envs, self.metadata = simulator, simulator.num_envs, simulator.metadata
        for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
            setattr(self, name, getattr(simulator, name))

    def reset(self, *, seed=None, options=None):
        return arrays(self.simulator.reset(seed=seed)[0]), {}

    def step(self, actions):
        *values, infos = self.simulator.step(torch.from_numpy(actions))
        return *map(arrays, values), arrays(infos)


def arrays(nested):
    if isinstance(nested, Mapping):
        return {key: arrays(member) for key, member in nested.items()}
    return nested.cpu().numpy()


def worker_of(vector_env, spec=MLP, *, n_steps=20, deterministic=True):
    spaces = environment_spaces(vector_env)
    device = device_of(vector_env)
    policy = loaded(spaces, spec, device=device or "cpu")
    given = {"actor_id": "a", "incarnation": 1, "env_seed": 3, "deterministic": deterministic}
    return make_worker(vector_env, policy, n_steps, **given)


@pytest.mark.parametrize("spec", [MLP, LSTM], ids=["mlp", "lstm"])
@pytest.mark.parametrize("simulator", [BatchedCartPole, NestedCartPole, BatchedReacher, LaterReset])
def test_rollouts_are_those_of_the_same_simulator_through_numpy(simulator, spec):
    ours, theirs = worker_of(simulator(5), spec), worker_of(ThroughNumpy(simulator(5)), spec)
    for _ in range(4):
        one, other = ours.collect(), theirs.collect()
        # numpy's log-softmax and torch's may differ by a rounding
        assert_same_rollout(one, other, log_prob_atol=1e-5)
    assert one.sequence == 4


def test_nothing_waits_for_the_device_within_a_rollout():
    with Accelerator() as accelerator:
        worker = worker_of(NestedCartPole(5, device=accelerator.device), deterministic=False)
        worker.collect()
        waits = []
        with accelerator.counting() as cost:
            rollout = worker.collect(lambda: waits.append(len(cost.waits)) or bool(cost.waits))
        assert waits == [0] * 20
        # once for the places where episodes ended, then for the copies, of which a GPU waits for all at once
        assert cost.waits == ["nonzero"] + ["copy_"] * 12
    assert isinstance(rollout.reward, np.ndarray)
    assert rollout.episodes


def test_a_simulator_without_final_observations_is_told_once_what_that_costs(caplog):
    class Forgetful(NestedCartPole):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    worker = worker_of(Forgetful(3))
    rollouts = [worker.collect() for _ in range(2)]
    assert caplog.text.count("has the value of its second-to-last observation") == 1
    columns = rollouts[0].substeps[FLAT_SUBSTEP]
    for path, final in columns.final_observation.items():
        t, b = rollouts[0].final_index.T
        np.testing.assert_array_equal(final, columns.observation[path][t, b])
        assert len(final) == np.count_nonzero(rollouts[0].truncated | rollouts[0].terminated) > 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda seen: seen[:3], r"a tensor \[3, 4\] on cpu; expected a tensor \[5, 4\] on cpu"),
        (lambda seen: seen.numpy(), "a ndarray; expected a tensor"),
    ],
)
def test_what_does_not_fit_the_spaces_is_named(change, found):
    class Wrong(BatchedCartPole):
        def step(self, actions):
            observation, *others = super().step(actions)
            return change(observation), *others

    with pytest.raises(InvalidSpaceError, match=found):
        worker_of(Wrong(5)).collect()


def test_a_simulator_that_raises_is_named():
    class Broken(BatchedCartPole):
        def step(self, actions):
            raise RuntimeError("out of memory")

    with pytest.raises(EnvironmentFailedError, match="out of memory"):
        worker_of(Broken(5)).collect()


@pytest.mark.parametrize(
    "spec", [PolicySpec(head="q_values"), PolicySpec(frame_stack=2)], ids=["values", "frame stack"]
)
def test_policies_that_sample_in_main_memory_are_refused(spec):
    with pytest.raises(ConfigurationError, match="expected a policy of PPO, APPO or IMPALA without a frame stack"):
        worker_of(BatchedCartPole(5), spec)
    with pytest.raises(ConfigurationError, match="samples in main memory"):
        flat_workers.worker_of(BatchedCartPole(5))  # randomly


def test_one_environment_of_a_simulator_is_evaluated_through_numpy():
    factory = EnvironmentFactory("examples.batched_simulator:BatchedCartPole-v0")
    assert device_of(make_vector_env(factory, 3)) == "cpu"
    env = make_single_env(factory)
    observation, _ = env.reset(seed=1)
    assert isinstance(observation, np.ndarray)
    ends, n_steps = False, 0
    while not ends:
        before = observation
        observation, reward, terminated, truncated, _ = env.step(1)
        ends, n_steps = terminated or truncated, n_steps + 1
        assert reward == 1.0
    # pushed one way only, it falls; its last observation is that of the fall, not of the next episode
    assert 5 < n_steps < 20
    assert abs(observation[2]) > abs(before[2]) > 0.05


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3, start=-1),
        MultiDiscrete([2, 3], start=[1, -1]),
        MultiBinary(2),
        Box(-2.0, 2.0, (2,), np.float32),
    ],
    ids=str,
)
def test_samples_have_the_distribution_whose_log_probability_is_recorded(space):
    n_parameters = {"Discrete": 3, "MultiDiscrete": 5, "MultiBinary": 2, "Box": 4}[type(space).__name__]
    one = torch.linspace(-1.0, 0.8, n_parameters)
    generator = torch.Generator().manual_seed(0)
    parameters = one.expand(40_000, -1).contiguous()
    drawn = sample(space, parameters, generator)
    assert drawn.shape == (40_000, *space.shape)
    assert str(drawn.dtype) == f"torch.{space.dtype}"
    if isinstance(space, Box):
        mean, log_std = one.chunk(2)
        torch.testing.assert_close(drawn.mean(0), mean, atol=0.03, rtol=0.0)
        torch.testing.assert_close(drawn.std(0), log_std.exp(), atol=0.03, rtol=0.0)
    else:
        values, counts = drawn.reshape(40_000, -1).unique(dim=0, return_counts=True)
        expected = log_prob(space, one.expand(len(values), -1), values.reshape(-1, *space.shape)).exp()
        # the standard deviation of a frequency is at most 0.0025
        torch.testing.assert_close(counts / 40_000, expected, atol=0.01, rtol=0.0)
    likeliest = sample(space, one[None], None)[0]
    assert space.contains(likeliest.numpy() if space.shape else likeliest.item())
