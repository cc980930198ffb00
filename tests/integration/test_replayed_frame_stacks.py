"""Single frames in a replay buffer: samples are those of a buffer that gymnasium's FrameStackObservation filled."""

import functools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.r2d2 import R2d2
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.replay.batches import to_batch
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from tests.arrived_rollouts import through_the_wire
from tests.buffers import make_buffer
from tests.integration.test_frame_stacking import (
    ENVIRONMENTS,
    NEXT,
    RAISING,
    SAME,
    B,
    K,
    T,
    player_of,
)
from tests.played_rollouts import check_same

pytestmark = pytest.mark.slow

CAPACITY, BATCH = 300, 32


def empty_buffer(known: EnvironmentSpaces, **settings: object) -> ReplayBuffer:
    return make_buffer(known, n_rollout_steps=T, batch_size=BATCH, n_envs=B, seed=3, capacity=CAPACITY, **settings)


@functools.cache
def played(name: str, mode: object, spec: PolicySpec, n_rollouts: int) -> tuple[EnvironmentSpaces, list[Rollout]]:
    """Returns what a worker plays, with stacks or with gymnasium's wrapper."""
    environment = ENVIRONMENTS[name]
    make = environment if spec.frame_stack > 1 else lambda: FrameStackObservation(environment(), K)
    worker, known, _ = player_of(make, spec, mode)
    rollouts = [through_the_wire(worker.collect(), known, B, spec)[0] for _ in range(n_rollouts)]
    worker.close()
    return known, rollouts


def filled(
    name: str, mode: object, spec: PolicySpec, n_rollouts: int, **settings: object
) -> tuple[ReplayBuffer, EnvironmentSpaces]:
    known, rollouts = played(name, mode, spec, n_rollouts)
    buffer = empty_buffer(known, frame_stack=spec.frame_stack, **settings)
    for rollout in rollouts:
        buffer.insert(rollout)
    return buffer, known


def pair_of_buffers(name: str, mode: object, n_rollouts: int = 24, **settings: object) -> list[ReplayBuffer]:
    """The buffer of single frames, and that of gymnasium's stacks."""
    # what acts makes no difference to a buffer: no time for convolutions
    specs = [PolicySpec(network="mlp", hidden_sizes=(8,), frame_stack=k) for k in (K, 1)]
    return [filled(name, mode, spec, n_rollouts, **settings)[0] for spec in specs]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in ENVIRONMENTS for mode in (SAME, NEXT) if (name, mode) != (RAISING, NEXT)],
)
def test_entries_are_those_of_gymnasiums_wrapper(name: str, mode: object, n_step: int, tmp_path: Path):
    settings = {"n_step": n_step, "sampler": "lifo"}
    own, expected = pair_of_buffers(name, mode, **settings)
    # short episodes fill rings below their capacity, and both have removed old entries to write new ones there
    n = min(own.size, expected.size)
    assert CAPACITY / 2 < n <= own.info().capacity < own.info().inserted / 2
    samples = [buffer.sample(n) for buffer in (own, expected)]
    for sample in samples:
        sample.keys[:] = 0  # rows of two rings, which have not as many
    check_same(*samples)
    assert (samples[0].terminated | samples[0].truncated).sum() > n / 20
    own.checkpoint.begin().write(tmp_path / "saved", None)
    loaded = empty_buffer(own_spaces(name), frame_stack=K, **settings)
    loaded.checkpoint.load(tmp_path / "saved")
    again = loaded.sample(n)
    again.keys[:] = 0
    check_same(again, samples[1])


def own_spaces(name: str) -> EnvironmentSpaces:
    environment = ENVIRONMENTS[name]()
    return {FLAT_SUBSTEP: SubstepSpaces(observation=environment.observation_space, action=environment.action_space)}


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", ["image [H, W]", "vector"])
def test_the_same_seed_draws_the_same_batches_where_entries_have_slots(name: str, n_step: int, sampler: str):
    settings = {"removal": "lowest_priority", "n_step": n_step, "sampler": sampler}
    own, expected = pair_of_buffers(name, SAME, **settings)
    rng = np.random.default_rng(0)
    for _ in range(5):
        samples = [buffer.sample(BATCH) for buffer in (own, expected)]
        check_same(*samples)
        priorities = rng.random(BATCH)
        for buffer in (own, expected):
            buffer.update_priorities(samples[0].keys, priorities)


@pytest.mark.parametrize(("n_steps", "least"), [(32, 3.6), (128, 3.8)])
def test_buffer_takes_a_quarter_of_the_bytes(n_steps: int, least: float):
    image = spaces.Box(0, 255, (84, 84), np.uint8)
    sizes = []
    for frame_stack in (K, 1):
        seen = image if frame_stack > 1 else stacked_space(image, K)
        known = {FLAT_SUBSTEP: SubstepSpaces(observation=seen, action=spaces.Discrete(4))}
        tracemalloc.start()
        buffer = make_buffer(known, n_rollout_steps=n_steps, capacity=10_000, frame_stack=frame_stack)
        n_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert n_bytes == pytest.approx(buffer.info().n_bytes, rel=0.02)
        sizes.append(n_bytes)
    assert sizes[1] / sizes[0] > least


SETTINGS = {"dqn": (Dqn, DqnSettings()), "sac": (Sac, SacSettings()), "r2d2": (R2d2, R2d2Settings())}


@pytest.mark.parametrize(
    ("algorithm", "replay", "policy"),
    [
        ("dqn", {"n_step": 1, "removal": "lowest_priority"}, {}),
        ("sac", {"n_step": 3, "removal": "lowest_priority"}, {}),
        (
            "r2d2",
            {"entry": "rollouts", "sequence_length": T - 3, "burn_in": 3, "state_size": 12},
            {"recurrence": "lstm", "recurrent_size": 6},
        ),
    ],
)
def test_learner_learns_the_bits_that_it_learns_from_stacks(algorithm: str, replay: dict, policy: dict):
    learnt = []
    for k in (K, 1):
        spec = PolicySpec(frame_stack=k, hidden_sizes=(16,), **policy)
        buffer, known = filled("vector", SAME, spec, 12, **replay)
        kind, own = SETTINGS[algorithm]
        made: Algorithm = kind(known, spec, own, seed=7)
        for _ in range(5):
            made.update(to_batch(buffer.sample(BATCH), torch.device("cpu")), progress=0.0)
        learnt.append(made.policy_state())
    one, other = learnt
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
