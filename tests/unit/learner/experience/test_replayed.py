import dataclasses
import logging
import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.algorithms.schedules import Schedule, linear
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.experience import replayed
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, ReplayedExperience
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.errors import CollectInterruptedError, CollectTimeoutError, ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer
from tests.delayed_copier import DelayedCopier

T, BATCH = 4, 16
SPEC = PolicySpec(hidden_sizes=(4,), normalize_observations=True)


def make_source(
    *, beta: Schedule | None = None, n_steps: int = 5, spec: PolicySpec = SPEC, **replay: object
) -> ReplayedExperience:
    env_factory = EnvironmentFactory("tests.environments:CountingEnv", {"n_steps": n_steps})
    policy = TorchPolicy(probe_spaces(env_factory), spec)
    actors = SequentialDistributedActors(env_factory, policy, T, 1, 1, envs_per_actor=2)
    buffer = make_buffer(
        policy.spaces,
        n_rollout_steps=T,
        batch_size=BATCH,
        n_envs=MAX_TRAJECTORIES,
        place="cpu",
        **{"capacity": 1000, "min_size": 40, "device": "cpu", **replay},
    )
    return ReplayedExperience(actors, {FLAT_SUBSTEP: buffer}, policy=policy, batch_size=BATCH, beta=beta)


def test_it_fills_first_and_then_keeps_the_ratio():
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        first = source.next("cpu")
        assert first.env_steps == 40, "the minimum, and not more"
        assert first.batch.reward.shape == (1, BATCH)
        steps = first.env_steps
        for _ in range(200):
            experience = source.next("cpu")
            assert len(experience.policy_lag) * T == experience.env_steps
            steps += experience.env_steps
        drawn = 201 * BATCH
        # after the minimum, four samples an insert, give or take the error buffer
        assert abs(4.0 * (steps - 40) - drawn) <= 400 + 4 * 2 * T


def test_what_comes_is_in_the_statistics_of_the_actors():
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        returns = [value for _ in range(20) for value in source.next("cpu").returns]
        statistics = source.actors.get_epoch_stats_aggregator().epoch_stats()
        assert statistics["episode_count/epoch"] == len(returns) > 0
        assert statistics["episode_return/mean"] == 15.0


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"recurrence": "lstm"}, "the policy has recurrence lstm, and a replay buffer keeps no"),
        ({"frame_stack": 4}, "sees 4 frames at once, and the replay buffer has frame_stack 1; .* with frame_stack=4"),
    ],
)
def test_refuses_policy_whose_rollouts_the_buffer_does_not_keep(spec: dict, text: str):
    with pytest.raises(ConfigurationError, match=text):
        make_source(spec=dataclasses.replace(SPEC, **spec))


@pytest.mark.parametrize("make", [make_copier, lambda device: DelayedCopier()], ids=["at once", "delayed"])
def test_priorities_reach_the_buffer_before_the_next_draw(
    make: Callable[[str], Copier], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replayed, "make_copier", make)
    with make_source(sampler="prioritized", samples_per_insert=4.0, error_buffer=400.0) as source:
        batch = source.next("cpu").batch
        assert batch.weights.shape == batch.discount.shape == (BATCH,)
        chosen = batch.keys[0]
        source.learnt(batch, torch.where(torch.from_numpy(batch.keys == chosen), 1e6, 1e-6))
        again = source.next("cpu").batch
        assert np.count_nonzero(again.keys == chosen) > BATCH / 2
        source.learnt(again, None)


def test_the_trainers_wait_for_the_buffer_is_told_with_the_numbers(monkeypatch: pytest.MonkeyPatch):
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        told: list[tuple[str, tuple[ReplayWaiting, ...]]] = []
        play = source.actors.next_slice

        def next_slice(*args: object, **kwargs: object) -> RolloutSlice:
            with source.actors.waiting.waiting_for("rollouts"):
                told.append((source.actors.waiting.current()[0], source.replay_status().waiting))
            return play(*args, **kwargs)

        monkeypatch.setattr(source.actors, "next_slice", next_slice)
        assert source.metrics()["replay/sample_wait_s"] == 0
        source.next("cpu")
        assert [reason for reason, _ in told] == [
            f"the replay buffer: a sample of 16 waits for {40 - size} entries: {size} of 40, and so for rollouts"
            for size in range(0, 40, 8)
        ]
        for reason, (wait,) in told:
            assert wait.who == "the trainer"
            assert wait.reason in reason
        assert source.actors.waiting.current() == ("", 0.0)
        assert source.replay_status().waiting == ()
        assert source.metrics()["replay/sample_wait_s"] > 0


def ahead(source: ReplayedExperience) -> None:
    """Puts rollouts in until the limiter refuses one."""
    while source._insert(source.actors.next_slice(MAX_TRAJECTORIES)):
        pass


def test_rollouts_that_are_held_back_are_told_while_the_trainer_trains(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        ahead(source)
        (wait,) = source.replay_status().waiting
        assert wait.who == "the actors"
        assert wait.reason.startswith("an insertion of 8 waits for ")
        before = source.replay_status()
        assert (before.size, before.inserted, before.sampled) == (136, 136, 0)
        assert (before.difference, before.min_diff, before.max_diff) == (544, -240, 560)
        now, real = time.monotonic() + 30.0, time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now)
        assert source.next("cpu").env_steps == 136
        assert source.metrics()["replay/waiting"] == 0, "one batch pays for what was refused"
        assert source.metrics()["replay/insert_wait_s"] == pytest.approx(30.0, abs=5.0)
        assert "replay buffer to take rollouts in: an insertion of 8 waits for 16 samples" in caplog.messages[-1]
        monkeypatch.setattr(time, "monotonic", real)
        assert source.next("cpu").env_steps == 8, "it is in"
        assert source.replay_status().waiting == ()


def test_metrics_have_the_counters_of_the_buffer():
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        source.next("cpu")
        source.next("cpu")
        metrics = source.metrics()
    assert (metrics["replay/size"], metrics["replay/inserts"], metrics["replay/samples"]) == (40, 40, 2 * BATCH)
    assert metrics["replay/samples_per_insert"] == 2 * BATCH / 40
    assert (metrics["replay/min_diff"], metrics["replay/difference"], metrics["replay/max_diff"]) == (-240, 128, 560)


def test_without_a_limit_there_is_no_band_to_write():
    with make_source() as source:
        source.next("cpu")
        assert "replay/max_diff" not in source.metrics()
        assert source.metrics()["replay/insert_wait_s"] == 0
        assert source.replay_status().max_diff == math.inf


def test_beta_follows_the_progress_of_training():
    with make_source(sampler="prioritized", beta=linear(0.0, 1.0)) as source:
        for progress in (0.0, 0.0, 0.5, 1.0):
            batch = source.next("cpu", progress=progress).batch
            assert source.metrics()["replay/beta"] == pytest.approx(progress)
            assert bool((batch.weights == 1.0).all()) == (progress == 0.0), "with beta 0 no entry counts less"
            source.learnt(batch, 1.0 + torch.arange(BATCH))
    assert "replay/beta" not in make_source().metrics()


def test_buffer_that_short_episodes_fill_below_its_minimum_is_filled_for_good():
    with make_source(n_steps=1, capacity=100, min_size=100) as source:
        source.next("cpu")
        (buffer,) = source.buffers.values()
        assert buffer.is_full
        assert buffer.size < 100
        source.renew()
        assert source.actors.policy.state_arrays()["exploration.uniform"] == 0, (
            "else it would act at random from here on"
        )


def test_trains_though_actors_are_faster_than_it_takes_in(monkeypatch: pytest.MonkeyPatch):
    with make_source() as source:
        monkeypatch.setattr(source.actors, "poll_slice", source.actors.next_slice)
        assert source.next("cpu").env_steps < 200
        assert source.next("cpu").env_steps < 200


def test_wait_for_a_buffer_that_nothing_enters_ends_by_the_deadline(monkeypatch: pytest.MonkeyPatch):
    with make_source() as source:
        monkeypatch.setattr(source.buffers[FLAT_SUBSTEP], "insert", lambda rollout, **options: 0)
        source.actors.collect_timeout_s = 0.05
        with pytest.raises(CollectTimeoutError, match=r"neither taken an entry nor given a batch.*0 of 40"):
            source.next("cpu")


def test_a_stop_ends_the_wait():
    with make_source() as source:
        source.actors.interrupt()
        with pytest.raises(CollectInterruptedError):
            source.next("cpu")
        assert source.replay_status().waiting == (), "others that draw from the buffer do not wait behind it"


def test_every_inserted_step_enters_the_moments_once(monkeypatch):
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        buffer, inserted = source.buffers[FLAT_SUBSTEP], []
        insert = buffer.insert
        monkeypatch.setattr(buffer, "insert", lambda rollout, **how: (insert(rollout, **how), inserted.append(rollout)))
        steps = sum(source.next("cpu").env_steps for _ in range(40))
        state = source.actors.policy.state_arrays()
        assert state["normalization.0.count"] == steps == buffer.info().inserted
    seen = np.concatenate([rollout.substeps[FLAT_SUBSTEP].observation[""].reshape(-1, 4) for rollout in inserted])
    np.testing.assert_allclose(state["normalization.0.mean"], seen.mean(axis=0, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(state["normalization.0.variance"], seen.var(axis=0, dtype=np.float64), rtol=1e-9)


@pytest.mark.parametrize(
    "replay",
    [
        {},
        {"entry": "rollouts"},
        {"entry": "rollouts", "burn_in": 1, "sequence_length": 2},
    ],
    ids=["transitions", "rollouts", "sequences"],
)
def test_an_empty_batch_has_the_shape_of_those_with_data(replay: dict):
    with make_source(**replay) as source:
        given, empty = source.next("cpu").batch, source.empty_batch("cpu")
    assert not empty.valid.any()
    assert (empty.reward.shape, empty.burn_in) == (given.reward.shape, given.burn_in)
    leaves, others = (batch.substeps[FLAT_SUBSTEP].observation for batch in (empty, given))
    assert {path: leaf.shape for path, leaf in leaves.items()} == {path: leaf.shape for path, leaf in others.items()}
