"""The buffer beside a model that is a list: random insertions, draws, priorities and resets, on every store.

And beside its twin, whose columns are tensors: the same seed draws the same bits.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.buffers import make_buffer
from tests.front_padding import play_padded
from tests.played_rollouts import World, check_same, check_transitions, random_ends

pytestmark = pytest.mark.slow
DISCOUNT = 0.9


class BufferMachine(RuleBasedStateMachine):
    """Every entry drawn is one that should be there, and its next observation is the true one."""

    @initialize(
        n_steps=st.integers(1, 5),
        n_envs=st.integers(1, 4),
        capacity=st.integers(5, 40),
        n_step=st.integers(1, 4),
        has_reset_rows=st.booleans(),
        sampler=st.sampled_from(["uniform", "prioritized", "fifo", "lifo"]),
        removal=st.sampled_from(["oldest", "oldest", "lowest_priority"]),
        max_times_sampled=st.none() | st.integers(1, 3),
        frame_stack=st.sampled_from([1, 1, 2, 4]),
    )
    def start(
        self, n_steps, n_envs, capacity, n_step, has_reset_rows, sampler, removal, max_times_sampled, frame_stack
    ):
        self.buffer, self.twin = (
            make_buffer(
                n_rollout_steps=n_steps,
                batch_size=1,
                discount=DISCOUNT,
                place="cpu",
                capacity=capacity,
                sampler=sampler,
                removal=removal,
                n_step=n_step,
                max_times_sampled=max_times_sampled,
                min_size=1,
                device=device,
                frame_stack=frame_stack,
            )
            for device in ("cpu", "learner")
        )
        self.world = World(n_steps=n_steps, has_reset_rows=has_reset_rows, n_envs=n_envs, frame_stack=frame_stack)
        self.stacks = self.world.stacks if frame_stack > 1 else None
        self.n_step, self.capacity, self.sampler, self.removal = n_step, capacity, sampler, removal
        self.most = max_times_sampled
        self.known, self.order, self.times_drawn, self.number_of_key = {}, [], {}, {}
        self.n_inserted = self.n_sampled = 0

    @rule(seed=st.integers(0, 999), probability=st.sampled_from([0.0, 0.2, 0.6]), pads=st.booleans())
    def insert(self, seed, probability, pads):
        world, rng = self.world, np.random.default_rng(seed)
        if pads and not world.has_reset_rows:
            # before the first transition of each: none, some or all rows
            n_padded = rng.integers(0, world.n_steps + 1, world.n_envs).tolist()
            rollout, played = play_padded(world, n_padded, rng, probability)
        else:
            rollout, played = world.play(random_ends(rng, world.n_steps, world.n_envs, probability))
        assert self.buffer.insert(rollout) == self.twin.insert(rollout) == len(played)
        self.n_inserted += len(played)
        self.known |= {step.observation: step for step in played}
        self.order += [step.observation for step in played]

    @precondition(lambda self: self.buffer.size > 0)
    @rule(fraction=st.floats(0, 1))
    def sample(self, fraction):
        size = self.buffer.size
        n = max(1, round(fraction * size))
        sample = self.buffer.sample(n)
        check_same(sample, self.twin.sample(n))
        self.n_sampled += n
        numbers = check_transitions(sample, self.known, self.n_step, DISCOUNT, self.stacks).tolist()
        for key, number in zip(sample.keys.tolist(), numbers, strict=True):
            assert self.number_of_key.setdefault(key, number) == number, "a key names one entry for ever"
            self.times_drawn[number] = self.times_drawn.get(number, 0) + 1
        if self.most is not None:
            assert max(self.times_drawn[number] for number in numbers) <= self.most
        else:
            n_ignored = self.buffer.update_priorities(sample.keys, np.ones(n))
            assert self.twin.update_priorities(sample.keys, np.ones(n)) == n_ignored == 0, "what was drawn is there"
        there = [
            number for number in self.order if self.times_drawn.get(number, 0) - numbers.count(number) != self.most
        ]
        if self.removal == "oldest":
            # Rows of used up entries count as room in a ring: what is left is the end of what came.
            assert set(numbers) <= set(there[-size:])
            if self.sampler == "fifo":
                assert numbers == there[-size:][:n]
            if self.sampler == "lifo":
                assert numbers == there[::-1][:n]
        if self.sampler != "prioritized":
            assert len(set(numbers)) == n
            assert (sample.weights == 1).all()
        else:
            assert sample.weights.max() == 1
            assert sample.weights.min() > 0

    @precondition(lambda self: self.number_of_key)
    @rule(seed=st.integers(0, 999))
    def update(self, seed):
        rng = np.random.default_rng(seed)
        keys = rng.choice(list(self.number_of_key), 5)
        before = self.buffer.info().ignored_updates
        priorities = rng.random(5) + 0.01
        n_ignored = self.buffer.update_priorities(keys, priorities)
        assert self.twin.update_priorities(keys, priorities) == n_ignored
        assert 0 <= n_ignored <= 5
        assert self.buffer.info().ignored_updates == before + n_ignored

    @rule()
    def reset(self):
        self.buffer.reset()
        self.twin.reset()
        self.order, self.n_inserted, self.n_sampled = [], 0, 0
        assert self.buffer.update_priorities(list(self.number_of_key), [1.0] * len(self.number_of_key)) == len(
            self.number_of_key
        )
        self.buffer.reset()

    @invariant()
    def counts_are_right(self):
        info = self.buffer.info()
        assert self.twin.info() == info
        assert (info.inserted, info.sampled) == (self.n_inserted, self.n_sampled)
        assert info.size <= min(self.n_inserted, self.capacity)
        if self.most is None:
            least = self.capacity if self.removal == "lowest_priority" else self.capacity // 2
            assert info.size >= min(self.n_inserted, least)
        assert info.limiter.size == info.size


BufferMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
test_buffer_agrees_with_a_list = BufferMachine.TestCase
