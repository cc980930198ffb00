"""Off-policy experience of an environment with two substeps: a buffer each, drawn from in turn."""

import logging
import time

import numpy as np
import pytest
import torch

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.schedules import linear
from rollcast.learner.experience.experience import Experience
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, ReplayedExperience
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import make_buffers
from rollcast.services.policies.policies import PolicySpec
from tests.two_substeps import SPACES, TwoSubstepActors

T, BATCH, MIN_SIZE = 4, 16, 48
LIMITED = {"samples_per_insert": 4.0, "error_buffer": 400.0}


def make_source(*, padding: float = 0.2, ahead: bool = False, **replay: object) -> ReplayedExperience:
    policy = TorchPolicy(SPACES, PolicySpec(hidden_sizes=(4,)))
    actors = TwoSubstepActors(policy, T, 1, padding=padding, ahead=ahead)
    buffers = make_buffers(
        ReplaySettings(**{"capacity": 5000, "min_size": MIN_SIZE, **replay}),
        SPACES,
        n_rollout_steps=T,
        batch_size=BATCH,
        n_envs=MAX_TRAJECTORIES,
    )
    beta = linear(0.4, 1.0) if replay.get("sampler") == "prioritized" else None
    return ReplayedExperience(actors, buffers, policy=policy, batch_size=BATCH, beta=beta)


def key_of(experience: Experience) -> str:
    (key,) = experience.batch.substeps
    return key


def test_batches_are_of_one_substep_each_and_keep_the_ratio_of_each():
    with make_source(**LIMITED) as source:
        keys, env_steps = [], 0
        for _ in range(400):
            experience = source.next("cpu")
            keys.append(key_of(experience))
            assert experience.batch.substeps[keys[-1]].observation[""].shape[:2] == (1, BATCH)
            assert experience.batch.valid.all()
            env_steps += experience.env_steps
        assert set(keys) == set(SPACES)
        infos = {key: buffer.info() for key, buffer in source.buffers.items()}
        assert env_steps == sum(info.inserted for info in infos.values())
        for key, info in infos.items():
            assert info.sampled == BATCH * keys.count(key)
            assert info.limiter.min_diff <= info.limiter.difference <= info.limiter.max_diff
        # three scouts for one base
        assert keys.count("scout") > 2 * keys.count("base")


def test_without_a_limit_they_take_turns():
    with make_source(ahead=True) as source:
        keys = [key_of(source.next("cpu")) for _ in range(60)]
    first = keys.index("base")
    assert set(keys[:first]) == {"scout"}, "until the bases have their minimum"
    assert keys[first:] == (["base", "scout"] * 30)[: 60 - first]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"samples_per_insert": 0.5}, {"samples_per_insert": 16.0}, LIMITED])
def test_nobody_waits_for_ever_however_narrow_the_bands_are(limit: dict[str, float]):
    with make_source(padding=0.5, **limit) as source:
        keys = {key_of(source.next("cpu")) for _ in range(400)}
    assert keys == set(SPACES)


def test_actors_are_random_until_every_buffer_has_its_minimum():
    with make_source(**LIMITED) as source:
        seen: list[str] = []
        uniform: list[bool] = []
        while seen.count("base") < 2:
            seen.append(key_of(source.next("cpu")))
            uniform.append(bool(source.actors.policy.state_arrays()["exploration.uniform"]))
    first_base = seen.index("base")
    assert first_base > 0, "three scouts fill their buffer before one base does"
    assert uniform == [True] * first_base + [False] * (len(seen) - first_base)


def test_a_substep_that_keeps_all_at_random_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    with make_source(**LIMITED) as source:
        later = time.monotonic() + 30.0
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert key_of(source.next("cpu")) == "scout"
        (line,) = (message for message in caplog.messages if "at random" in message)
        assert line.endswith("the first batch of the substeps ['base']: until then all actors act at random")
        while key_of(source.next("cpu")) == "scout":
            pass
        caplog.clear()
        later += 100.0
        source.next("cpu")
        assert not caplog.messages


def test_the_wait_names_the_substeps_and_who_has_its_batch_waits_no_more(monkeypatch: pytest.MonkeyPatch):
    with make_source(padding=0.0, **LIMITED) as source:
        told: list[str] = []
        play = source.actors.next_slice

        def next_slice(*args: object, **kwargs: object) -> RolloutSlice:
            told.append(source.actors.waiting.current()[0])
            assert [wait.who for wait in source.replay_status().waiting] == ["the trainer"] * 2
            return play(*args, **kwargs)

        monkeypatch.setattr(source.actors, "next_slice", next_slice)
        assert key_of(source.next("cpu")) == "scout"
        assert told[0] == (
            "the replay buffer: scout: a sample of 16 waits for 48 entries: 0 of 48; "
            "base: a sample of 16 waits for 48 entries: 0 of 48"
        )
        assert source.replay_status().waiting == ()
        assert source.buffers["base"].info().limiter.waiting == ()


def test_priorities_reach_the_buffer_of_their_batch():
    with make_source(sampler="prioritized", ahead=True) as source:
        keys: set[str] = set()
        while len(keys) < 2:
            experience = source.next("cpu")
            if key_of(experience) in keys:
                continue
            keys.add(key_of(experience))
            batch = experience.batch
            chosen = batch.keys[0]
            source.learnt(batch, torch.where(torch.from_numpy(batch.keys == chosen), 1e6, 1e-6))
            again = source.buffers[key_of(experience)].sample(BATCH)
            assert np.count_nonzero(again.keys == chosen) > BATCH / 2


def test_metrics_and_status_tell_of_each_buffer_and_of_all():
    with make_source(**LIMITED) as source:
        for _ in range(20):
            source.next("cpu")
        metrics, status = source.metrics(), source.replay_status()
    infos = {key: buffer.info() for key, buffer in source.buffers.items()}
    for key, info in infos.items():
        assert metrics[f"replay/{key}/size"] == info.size
        assert metrics[f"replay/{key}/samples"] == info.sampled
        assert metrics[f"replay/{key}/max_diff"] == info.limiter.max_diff
    assert "replay/size" not in metrics
    assert metrics["replay/sample_wait_s"] >= 0
    assert status.size == sum(info.size for info in infos.values())
    assert status.capacity == 10_000
    assert status.sampled == 20 * BATCH
