import tracemalloc

import numpy as np
import pytest

from rollcast.learner.algorithms.trajectories import observations_to_value
from rollcast.learner.replay.batches import to_batch
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.samples import ReplaySample
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.batches import with_columns
from tests.buffers import make_buffer
from tests.played_rollouts import World, observations, on_host, random_ends

RNG = np.random.default_rng(0)
T = 6


def rollout_buffer(place: str | None = None, **settings) -> ReplayBuffer:
    return make_buffer(entry="rollouts", n_rollout_steps=T, place=place, **{"capacity": 7, **settings})


def check_stacks(sample: ReplaySample, world: World, true_next: dict[int, int]) -> None:
    """Compares the stacks that an algorithm makes with those that the world showed."""
    batch = to_batch(sample, "cpu")
    columns = batch.substeps[FLAT_SUBSTEP]
    rows = observations_to_value(batch, columns)["a"][..., 0].long()
    n_steps, n = batch.reward.shape
    of_steps = rows[: n_steps * n].view(n_steps, n, -1)
    numbers = columns.observation["a"][..., 0].long()
    finals = {tuple(index): i for i, index in enumerate(batch.final_index.tolist())}
    for t, b in batch.valid.nonzero().tolist():
        number = int(numbers[t, b])
        assert tuple(of_steps[t, b].tolist()) == world.stacks[number]
        if (t, b) in finals:
            following = rows[(n_steps + 1) * n + finals[t, b]]
        else:
            following = of_steps[t + 1, b] if t + 1 < n_steps else rows[n_steps * n + b]
        assert tuple(following.tolist()) == world.stacks[true_next[number]]


@pytest.mark.parametrize(("has_reset_rows", "removal"), [(False, "oldest"), (True, "lowest_priority")])
@pytest.mark.parametrize(
    "sequence",
    [
        {},
        {"sequence_length": 3, "burn_in": 1},
        {"sequence_length": 1},
        {"state_size": 3},
        {"state_size": 2, "sequence_length": 4, "burn_in": 2},
        {"frame_stack": 3},
        {"frame_stack": 4, "sequence_length": 2, "burn_in": 1},
        {"frame_stack": 2, "state_size": 2},
    ],
)
def test_samples_equal_the_played_rollouts(has_reset_rows: bool, sequence: dict, removal: str, place: str | None):
    buffer = rollout_buffer(place, removal=removal, **sequence)
    state_size, frame_stack = sequence.get("state_size", 0), sequence.get("frame_stack", 1)
    n_sampled = sequence.get("burn_in", 0) + sequence.get("sequence_length", 0) or T
    world = World(T, has_reset_rows, n_envs=3, state_size=state_size, frame_stack=frame_stack)
    # (policy version, first number of the trajectory) to the rollout and the environment
    played, true_next, seen_starts = {}, {}, set()
    for _ in range(20):
        rollout, steps = world.play(random_ends(RNG, T, 3))
        true_next |= {step.observation: step.next_observation for step in steps}
        assert buffer.insert(rollout) == 3
        numbers = rollout.substeps[FLAT_SUBSTEP].observation["a"][..., 0].astype(int)
        played |= {(rollout.policy_version, b): (rollout, numbers[:, b]) for b in range(3)}
        sample = on_host(buffer.sample(2))
        if frame_stack > 1:
            check_stacks(sample, world, true_next)
        n_rows = len(sample.reward)
        assert n_rows == n_sampled
        assert sample.burn_in == sequence.get("burn_in", 0)
        columns = sample.substeps[FLAT_SUBSTEP]
        finals = {tuple(index): i for i, index in enumerate(sample.final_index.tolist())}
        for i in range(2):
            drawn = columns.observation["a"][:, i, 0].astype(int)
            version = int(sample.policy_version[i])
            ((rollout, b, numbers),) = [
                (source, b, numbers)
                for (v, b), (source, numbers) in played.items()
                if v == version and set(drawn) <= set(numbers)
            ]
            start = numbers.tolist().index(drawn[0])
            seen_starts.add(start)
            rows = slice(start, start + n_rows)
            np.testing.assert_array_equal(drawn, numbers[rows])
            source = rollout.substeps[FLAT_SUBSTEP]
            np.testing.assert_array_equal(columns.observation["b"][:, i], source.observation["b"][rows, b])
            np.testing.assert_array_equal(columns.action[:, i], source.action[rows, b])
            np.testing.assert_array_equal(columns.log_prob[:, i], source.log_prob[rows, b])
            if state_size:
                np.testing.assert_array_equal(columns.initial_state[i], source.initial_state[b], strict=True)
            else:
                assert columns.initial_state is None
            np.testing.assert_array_equal(sample.reward[:, i], rollout.reward[rows, b])
            np.testing.assert_array_equal(sample.terminated[:, i], rollout.terminated[rows, b])
            np.testing.assert_array_equal(sample.truncated[:, i], rollout.truncated[rows, b])
            valid = np.ones((T, 3), bool) if rollout.valid is None else rollout.valid
            np.testing.assert_array_equal(sample.valid[:, i], valid[rows, b])
            for t in np.flatnonzero(sample.valid[:, i]).tolist():
                following = true_next[drawn[t]]
                for path, expected in observations(np.array(following)).items():
                    if (t, i) in finals:
                        actual = columns.final_observation[path][finals[t, i]]
                    elif t + 1 < n_rows:
                        actual = columns.observation[path][t + 1, i]
                    else:
                        actual = columns.next_observation[path][i]
                    np.testing.assert_array_equal(actual, expected)
    assert buffer.size == 7
    assert len(seen_starts) == T - n_sampled + 1


def test_removes_the_lowest_priority_first_and_never_uses_a_key_again():
    buffer = rollout_buffer(removal="lowest_priority", sampler="fifo", capacity=4)
    world = World(n_steps=T, has_reset_rows=False, n_envs=2)
    for _ in range(2):
        buffer.insert(world.play(np.zeros((T, 2), int))[0])
    keys = buffer.sample(4).keys.copy()
    assert buffer.update_priorities(keys, [3.0, 0.5, 2.0, 0.1]) == 0
    buffer.insert(world.play(np.zeros((T, 2), int))[0])
    left = buffer.sample(4)
    assert left.keys[:2].tolist() == keys[[0, 2]].tolist()
    assert left.policy_version.tolist() == [1, 2, 3, 3]
    assert buffer.update_priorities(keys, np.ones(4)) == 2, "those of two that are gone are ignored"
    buffer.reset()
    assert buffer.update_priorities(left.keys, np.ones(4)) == 4
    buffer.insert(world.play(np.zeros((T, 2), int))[0])
    assert not set(buffer.sample(2).keys.tolist()) & {*keys.tolist(), *left.keys.tolist()}, "no key names another entry"


@pytest.mark.parametrize(
    ("initial_state", "found"),
    [
        (None, "no recurrent state"),
        (np.zeros((2, 4), np.float32), r"a recurrent state of float32 \[2, 4\]"),
        (np.zeros((2, 3)), r"a recurrent state of float64 \[2, 3\]"),
    ],
)
def test_rejects_rollout_without_the_recurrent_state_it_keeps(initial_state: np.ndarray | None, found: str):
    rollout, _ = World(n_steps=T, has_reset_rows=False).play(np.zeros((T, 2), int))
    message = rf"substep '0' has {found}; expected float32 \[2, 3\], the states .*, in rollouts of {T} steps"
    with pytest.raises(InvalidRolloutError, match=message):
        rollout_buffer(state_size=3).insert(with_columns(rollout, initial_state=initial_state))


def test_drops_recurrent_states_that_it_does_not_keep():
    buffer = rollout_buffer()
    buffer.insert(World(n_steps=T, has_reset_rows=False, state_size=3).play(np.zeros((T, 2), int))[0])
    assert buffer.sample(2).substeps[FLAT_SUBSTEP].initial_state is None


@pytest.mark.parametrize("frame_stack", [1, 4])
def test_allocates_the_computed_bytes(frame_stack: int):
    rollout_buffer(frame_stack=frame_stack, state_size=3)  # what is imported and kept once
    tracemalloc.start()
    buffer = rollout_buffer(frame_stack=frame_stack, state_size=3, capacity=5000)
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes == pytest.approx(buffer.info().n_bytes, rel=0.1)
