"""Calls of `Act` that wait at the same time share a forward pass, and get what each would get alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.serving.acting import BatchedActing
from rollcast.services.errors import NotReadyError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.processes import DEADLINE_S, wait_until

SPACES = {"0": SubstepSpaces(observation=Box(-1, 1, (3,)), action=Discrete(5))}
SPEC = PolicySpec(hidden_sizes=(4,), recurrence="gru", recurrent_size=2, frame_stack=2)
WEIGHTS = TorchPolicy(SPACES, SPEC).state_arrays()


class Gate:
    """The newest policy, which the first caller waits for until `open` is set."""

    def __init__(self):
        self.asked, self.open = threading.Event(), threading.Event()

    def __call__(self):
        self.asked.set()
        assert self.open.wait(DEADLINE_S)
        return 7, WEIGHTS


def seen_by(seed: int, n: int) -> list[np.ndarray]:
    """n observations, the frames before them, and the states."""
    random = np.random.default_rng(seed)
    return [random.uniform(-1, 1, shape).astype(np.float32) for shape in ((n, 3), (n, 1, 3), (n, 2))]


def call(acting: BatchedActing, seed: int, n: int, *, deterministic: bool = True):
    """Acts for n observations, and returns what came out: actions, version, and the next states."""
    observation, previous, state = seen_by(seed, n)
    action, version = acting.act(
        {"": observation}, substep_key="0", deterministic=deterministic, state=state, previous={"": previous}
    )
    return action, version, state


def alone(seed: int, n: int):
    observation, previous, state = seen_by(seed, n)
    policy = make_policy(SPACES, SPEC, seed=0)
    policy.load(7, WEIGHTS)
    stack = np.concatenate([previous, observation[:, None]], axis=1)
    return policy.act({"": stack}, deterministic=True, state=state)[0], state


def waits_for(acting: BatchedActing, n: int) -> None:
    wait_until(lambda: len(acting._waiting) == n, f"{n} calls wait")


def test_calls_that_wait_share_a_forward_pass_and_get_their_own_answers():
    gate = Gate()
    acting = BatchedActing(SPACES, SPEC, gate, seed=0)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(call, acting, 0, 1)
        assert gate.asked.wait(DEADLINE_S)
        others = [pool.submit(call, acting, seed, seed) for seed in range(1, 6)]
        waits_for(acting, 5)
        gate.open.set()
        for seed, found in enumerate([first, *others]):
            action, version, state = found.result(DEADLINE_S)
            expected, expected_state = alone(seed, max(seed, 1))
            np.testing.assert_array_equal(action, expected)
            np.testing.assert_allclose(state, expected_state, atol=1e-6)
            assert version == 7
    status = acting.status()
    assert (status.calls, status.observations, status.forward_passes) == (6, 16, 2)
    assert 0 < status.p50_s <= status.p99_s


def test_samples_and_large_batches_have_passes_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollcast.learner.serving.acting._MOST_TOGETHER", 4)
    gate = Gate()
    acting = BatchedActing(SPACES, SPEC, gate, seed=0)
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(call, acting, 0, 1)]
        assert gate.asked.wait(DEADLINE_S)
        for n, deterministic in ((2, True), (2, False), (2, True), (9, True)):
            calls.append(pool.submit(call, acting, n, n, deterministic=deterministic))
            waits_for(acting, len(calls) - 1)
        gate.open.set()
        assert [len(found.result(DEADLINE_S)[0]) for found in calls] == [1, 2, 2, 2, 9]
    assert acting.status().forward_passes == 4


def test_an_error_reaches_every_caller_and_the_next_call_is_answered():
    gate = Gate()

    def newest():
        gate()
        if not recovered:
            raise NotReadyError("no policy yet")
        return 7, WEIGHTS

    recovered: list[bool] = []
    acting = BatchedActing(SPACES, SPEC, newest, seed=0)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, acting, 0, 1)]
        assert gate.asked.wait(DEADLINE_S)
        calls += [pool.submit(call, acting, 0, 1) for _ in range(2)]
        waits_for(acting, 2)
        gate.open.set()
        for found in calls:
            with pytest.raises(NotReadyError):
                found.result(DEADLINE_S)
    recovered.append(True)
    assert call(acting, 0, 1)[1] == 7


def test_answers_are_within_the_bounds_of_the_environments_actions():
    spaces = {"0": SubstepSpaces(observation=Box(-1, 1, (3,)), action=Box(-0.25, 0.25, (2,)))}
    spec = PolicySpec(hidden_sizes=(4,))
    weights = TorchPolicy(spaces, spec).state_arrays()
    acting = BatchedActing(spaces, spec, lambda: (7, weights), seed=0)
    action, _ = acting.act({"": np.zeros((50, 3), np.float32)}, substep_key="0", deterministic=False)
    assert np.abs(action).max() == 0.25, "sampled with a standard deviation of 1, and clipped"
