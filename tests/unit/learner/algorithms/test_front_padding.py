"""Rows in front of an agent's first action change nothing that is learnt."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.r2d2 import R2d2
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.ingest.batcher import Batcher
from rollcast.learner.ingest.queue import RolloutSlice
from rollcast.learner.replay.batches import to_batch
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer
from tests.front_padding import pad_front
from tests.rollouts import CARTPOLE_LIKE, make_rollout

T = 6
SPEC = PolicySpec(hidden_sizes=(8,), activation="relu")
# At least one acts, in another number of rows than all of them.
PADDING = st.lists(st.integers(0, T), min_size=2, max_size=5).filter(
    lambda numbers: 0 < sum(numbers) < T * len(numbers)
)


def played(n_padded: list[int]) -> Rollout:
    """A rollout of numbers of the order of one, with episodes that end in some rows."""
    rng = np.random.default_rng(len(n_padded))
    rollout = make_rollout(n_steps=T, n_envs=len(n_padded), final_index=[(2, 0), (T - 1, 1), (3, 1)])
    columns = rollout.substeps[FLAT_SUBSTEP]
    terminated = np.zeros_like(rollout.terminated)
    terminated[tuple(rollout.final_index.T)] = True
    columns = dataclasses.replace(
        columns,
        observation={"": rng.random((*terminated.shape, 4), np.float32)},
        log_prob=-rng.random(terminated.shape, np.float32),
        final_observation={"": rng.random((3, 4), np.float32)},
    )
    return dataclasses.replace(
        rollout,
        reward=rng.random(terminated.shape, np.float32),
        terminated=terminated,
        substeps={FLAT_SUBSTEP: columns},
    )


def versions(n_padded: list[int]) -> list[Rollout]:
    """The same rollout with three sorts of padding: as if played, and two of garbage."""
    rollout = played(n_padded)
    garbage = [pad_front(rollout, n_padded, seed=seed) for seed in (1, 2)]
    plain = dataclasses.replace(
        rollout,
        valid=garbage[0].valid,
        final_index=garbage[0].final_index,
        substeps={
            FLAT_SUBSTEP: dataclasses.replace(
                rollout.substeps[FLAT_SUBSTEP],
                final_observation=garbage[0].substeps[FLAT_SUBSTEP].final_observation,
            )
        },
    )
    return [plain, *garbage]


def assert_same(learnt: list[Algorithm]) -> None:
    first, *others = (algorithm.policy_state() for algorithm in learnt)
    assert all(np.isfinite(array).all() for array in first.values())
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(other[name], array)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", ["impala", "ppo", "appo"])
@given(PADDING)
@settings(max_examples=25)
def test_padding_does_not_change_on_policy_algorithms(kind: str, normalize: bool, n_padded: list[int]):
    learnt = []
    common = {"normalize_advantages": normalize}
    of_passes = {**common, "minibatch_steps": T, "n_epochs": 3}
    for rollout in versions(n_padded):
        n_acting = sum(n < T for n in n_padded)
        batcher = Batcher(CARTPOLE_LIKE, n_rollout_steps=T, batch_size=n_acting, copier=make_copier("cpu"))
        algorithm: Algorithm = {
            "impala": lambda: Impala(CARTPOLE_LIKE, SPEC, ImpalaSettings(**common, reward_clip="none")),
            "ppo": lambda: Ppo(CARTPOLE_LIKE, SPEC, PpoSettings(**of_passes)),
            "appo": lambda: Appo(CARTPOLE_LIKE, SPEC, AppoSettings(**of_passes)),
        }[kind]()
        for _ in range(2):
            batcher.add(RolloutSlice(rollout, 0, rollout.n_envs))
            metrics = algorithm.update(batcher.finish().ready(), progress=0.0)
            assert all(np.isfinite(float(value)) for value in metrics.values())
        learnt.append(algorithm)
    assert_same(learnt)


def learn_from_buffer(algorithm: Algorithm, buffer: ReplayBuffer, rollout: Rollout) -> None:
    """Inserts the rollout four times, with an update after each once there is a batch."""
    for _ in range(4):
        buffer.insert(rollout)
        if buffer.size >= 4:
            batch = to_batch(buffer.sample(4), "cpu")
            metrics = algorithm.update(batch, progress=0.0)
            assert all(np.isfinite(float(value)) for value in metrics.values())
            assert algorithm.priorities is not None
            buffer.update_priorities(batch.keys, algorithm.priorities.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("burn_in", [0, 2])
@given(PADDING)
@settings(max_examples=10)
def test_padding_does_not_change_an_algorithm_of_sequences(burn_in: int, n_padded: list[int]):
    spec = dataclasses.replace(SPEC, recurrence="lstm", recurrent_size=4)
    state = np.random.default_rng(0).random((len(n_padded), spec.state_size), np.float32)
    learnt = []
    for padded in versions(n_padded):
        columns = dataclasses.replace(padded.substeps[FLAT_SUBSTEP], initial_state=state)
        rollout = dataclasses.replace(padded, substeps={FLAT_SUBSTEP: columns})
        buffer = make_buffer(
            CARTPOLE_LIKE,
            n_rollout_steps=T,
            batch_size=4,
            capacity=100,
            sampler="prioritized",
            state_size=spec.state_size,
            entry="rollouts",
            burn_in=burn_in,
            sequence_length=T - burn_in,
        )
        algorithm = R2d2(CARTPOLE_LIKE, spec, R2d2Settings(n_step=2))
        learn_from_buffer(algorithm, buffer, rollout)
        learnt.append(algorithm)
    assert learnt[0].n_updates > 0
    assert_same(learnt)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sac", "dqn"])
@pytest.mark.parametrize("n_step", [1, 3])
@given(PADDING)
@settings(max_examples=10)
def test_padding_does_not_change_off_policy_algorithms(kind: str, n_step: int, n_padded: list[int]):
    learnt = []
    for rollout in versions(n_padded):
        buffer = make_buffer(
            CARTPOLE_LIKE, n_rollout_steps=T, batch_size=4, capacity=100, sampler="prioritized", n_step=n_step
        )
        algorithm: Algorithm = (
            Sac(CARTPOLE_LIKE, SPEC, SacSettings()) if kind == "sac" else Dqn(CARTPOLE_LIKE, SPEC, DqnSettings())
        )
        learn_from_buffer(algorithm, buffer, rollout)
        learnt.append(algorithm)
    assert learnt[0].n_updates > 0
    assert_same(learnt)
