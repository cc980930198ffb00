"""The brute-force twin of a `Recutter` is a list of transitions."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.recutter import Recutter
from rollcast.learner.replay.stores.row_plan import plan_rows
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.rollouts.rollouts import Rollout
from tests.batches import with_columns
from tests.buffers import make_buffer
from tests.played_rollouts import SPACES, World, check_transitions, random_ends, states

LEAF = "a"


def transitions(rollouts: Iterable[Rollout]) -> Iterator[tuple[object, ...]]:
    """Actor, environment, observation, action, log-probability, reward, ends, next observation: step by step."""
    for rollout in rollouts:
        (columns,) = rollout.substeps.values()
        finals = dict(
            zip(map(tuple, rollout.final_index.tolist()), columns.final_observation.get(LEAF, ()), strict=True)
        )
        following = [*columns.observation[LEAF][1:], columns.last_observation[LEAF]]
        for t, b in np.ndindex(rollout.reward.shape):
            if rollout.valid is None or rollout.valid[t, b]:
                yield (
                    rollout.actor_id,
                    b,
                    *columns.observation[LEAF][t, b].tolist(),
                    columns.action[t, b].item(),
                    columns.log_prob[t, b].item(),
                    rollout.reward[t, b].item(),
                    (rollout.terminated[t, b].item(), rollout.truncated[t, b].item()),
                    *finals.get((t, b), following[t][b]).tolist(),
                )


def play(
    rng: np.random.Generator,
    *,
    actor_id: str,
    lengths: list[int],
    n_envs: int,
    has_reset_rows: bool,
    state_size: int = 0,
) -> list[Rollout]:
    # worlds begin to number their observations where no other does
    world = World(1, has_reset_rows, n_envs, state_size, _count=int(rng.integers(2**20)))
    rollouts = []
    for length in lengths:
        world.n_steps = length
        rollouts.append(dataclasses.replace(world.play(random_ends(rng, length, n_envs))[0], actor_id=actor_id))
    return rollouts


@st.composite
def recordings(draw: st.DrawFn) -> list[Rollout]:
    """Rollouts of some actors in turns, each in order; some rollouts are missing."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    left = [
        play(
            rng,
            actor_id=actor_id,
            lengths=draw(st.lists(st.integers(1, 12), max_size=6)),
            n_envs=draw(st.integers(1, 3)),
            has_reset_rows=draw(st.booleans()),
        )
        for actor_id in ("a", "b")
    ]
    recording = []
    while any(left):
        rollout = draw(st.sampled_from([rollouts for rollouts in left if rollouts])).pop(0)
        if draw(st.integers(0, 5)):
            recording.append(rollout)
    return recording


@pytest.mark.slow
@given(recordings(), st.integers(1, 9), st.booleans())
def test_keeps_all_transitions_except_the_counted_drops(recording: list[Rollout], n_steps: int, fills_up: bool):
    recutter = Recutter(n_steps, fills_up=fills_up)
    cut = list(recutter.recut(recording))
    layout = make_layout(RolloutShape(SPACES, n_steps), log_prob=True)
    for rollout in cut:
        layout.check(rollout)
        plan_rows(rollout)
    before, after = Counter(transitions(recording)), Counter(transitions(cut))
    assert after <= before
    assert (before - after).total() == recutter.n_dropped
    if fills_up:
        assert not recutter.n_dropped
    else:
        assert recutter.n_dropped <= 3 * (n_steps - 1) * len(recording)
    for actor in ("a", "b"):
        for b in range(3):
            mine = [step for step in transitions(cut) if step[:2] == (actor, b)]
            assert mine == [step for step in transitions(recording) if step in after and step[:2] == (actor, b)]


def test_trajectories_continue_across_rollouts():
    recording = play(np.random.default_rng(0), actor_id="a", lengths=[3] * 8, n_envs=2, has_reset_rows=False)
    recutter = Recutter(8, fills_up=False)
    assert [rollout.n_steps for rollout in recutter.recut(recording)] == [8, 8, 8]
    assert recutter.n_dropped == 0


def test_rollouts_of_the_right_length_are_unchanged():
    recording = play(np.random.default_rng(0), actor_id="a", lengths=[4] * 3, n_envs=2, has_reset_rows=True)
    cut = list(Recutter(4, fills_up=False).recut(recording))
    assert all(after is before for after, before in zip(cut, recording, strict=True))


@pytest.mark.parametrize("n_steps", [2, 5, 8])
def test_each_step_keeps_the_version_that_chose_it(n_steps: int):
    rng = np.random.default_rng(0)
    recording = play(rng, actor_id="a", lengths=[3] * 4, n_envs=2, has_reset_rows=False)
    recording = [dataclasses.replace(rollout, policy_version=5 + i) for i, rollout in enumerate(recording)]
    own = rng.integers(-1, 9, (3, 2))
    recording[2] = dataclasses.replace(recording[2], policy_versions=own)
    cut = list(Recutter(n_steps, fills_up=True).recut(recording))
    found = np.concatenate(
        [
            np.full((n_steps, 2), rollout.policy_version)
            if rollout.policy_versions is None
            else rollout.policy_versions
            for rollout in cut
        ]
    )
    np.testing.assert_array_equal(found[:12], [[5, 5]] * 3 + [[6, 6]] * 3 + own.tolist() + [[8, 8]] * 3)


@pytest.mark.parametrize("n_steps", [2, 6])
def test_recurrent_states_stay_where_rollouts_began(n_steps: int):
    """Also those of trajectories that begin to act in a later rollout."""
    rng = np.random.default_rng(1)
    recording = play(rng, actor_id="a", lengths=[2] * 6, n_envs=3, has_reset_rows=True, state_size=4)
    late = dataclasses.replace(recording[0], valid=np.array([[True, False, True]] * 2))
    cut = list(Recutter(n_steps, fills_up=False).recut([late, *recording[1:]]))
    assert len(cut) == 12 // n_steps
    for rollout in cut:
        numbers, valid = rollout.substeps["0"].observation[LEAF][..., 0], rollout.valid
        if valid is None:
            valid = np.ones(rollout.reward.shape, bool)
        for b in np.flatnonzero(valid.any(axis=0)):
            first = numbers[valid[:, b].argmax(), b : b + 1]
            np.testing.assert_array_equal(rollout.substeps["0"].initial_state[b], states(first, 4)[0])


@pytest.mark.parametrize("n_steps", [2, 6])
def test_rollouts_that_begin_inside_another_have_no_recurrent_state(n_steps: int):
    rng = np.random.default_rng(0)
    recording = play(rng, actor_id="a", lengths=[4] * 3, n_envs=2, has_reset_rows=False, state_size=2)
    first, second, *_ = (rollout.substeps["0"] for rollout in Recutter(n_steps, fills_up=False).recut(recording))
    assert first.initial_state is not None
    assert second.initial_state is None


@pytest.mark.parametrize(
    "changes",
    [{"sequence": 3}, {"actor_id": "b"}, {"incarnation": 2}],
    ids=["a gap", "another actor", "another process"],
)
def test_does_not_join_rollouts_that_do_not_follow_each_other(changes: dict[str, object]):
    first, second = play(np.random.default_rng(0), actor_id="a", lengths=[2, 2], n_envs=1, has_reset_rows=False)
    recutter = Recutter(4, fills_up=False)
    assert len(list(recutter.recut([first, second]))) == 1
    assert list(recutter.recut([first, dataclasses.replace(second, **changes)])) == []
    assert recutter.n_dropped == 4


def test_does_not_join_rollout_that_begins_with_another_observation():
    first, second = play(np.random.default_rng(0), actor_id="a", lengths=[2, 2], n_envs=1, has_reset_rows=False)
    first.substeps["0"].last_observation["b"][:] += 1
    assert list(Recutter(4, fills_up=False).recut([first, second])) == []


def test_episode_end_without_final_observation_stays_at_a_rollouts_end():
    """Its final observation is the one after the last step, and looks like the first of the next episode."""
    world = World(2, has_reset_rows=False, n_envs=1)
    first, second = (world.play(np.zeros((2, 1)))[0] for _ in range(2))
    assert len(list(Recutter(4, fills_up=True).recut([first, second]))) == 1
    first.terminated[-1] = True
    cut = list(Recutter(4, fills_up=True).recut([first, second]))
    assert len(cut) == 2
    assert Counter(transitions(cut)) == Counter(transitions([first, second]))


@pytest.mark.slow
@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("brings_frames", [False, True])
@pytest.mark.parametrize("n_steps", [2, 5, 7])
def test_stacks_are_those_of_the_recording(n_steps: int, brings_frames: bool, has_reset_rows: bool):
    rng, world, known = np.random.default_rng(n_steps), World(1, has_reset_rows, 3, frame_stack=4), {}
    recording = []
    for _ in range(12):
        world.n_steps = int(rng.integers(1, 9))
        rollout, played = world.play(random_ends(rng, world.n_steps, 3, 0.2))
        recording.append(rollout if brings_frames else with_columns(rollout, previous_observation=None))
        known |= {step.observation: dataclasses.replace(step, follower=None) for step in played}
    buffer = make_buffer(n_rollout_steps=n_steps, capacity=500, frame_stack=4, sampler="fifo")
    recutter = Recutter(n_steps, fills_up=True, frame_stack=4)
    for rollout in recutter.recut(recording):
        buffer.insert(rollout)
    assert recutter.n_without_frames == 0
    assert buffer.size == len(known)
    drawn = check_transitions(buffer.sample(buffer.size), known, 1, 0.99, world.stacks)
    assert set(drawn.tolist()) == set(known)
