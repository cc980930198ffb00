import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.services.errors import LimitExceededError
from rollcast.services.replay import batch_codec as replay_batch_codec
from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.batch_codec import BatchEncoder
from tests.unit.services.replay.example_batches import as_parts, assert_same, decode, example_batch


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 6),
    st.booleans(),
    st.integers(900, 4000) | st.just(2**22),
    st.integers(100, 4000) | st.just(2**22),
    st.booleans(),
    st.integers(0, 5),
    st.integers(1, 4),
)
@settings(max_examples=30)
def test_batch_comes_back_for_every_size_of_part(
    n_steps, n_entries, n_finals, log_prob, part_bytes, fast_bytes, deferred, state_size, frame_stack
):
    batch = example_batch(
        n_steps, n_entries, n_finals=n_finals, log_prob=log_prob, state_size=state_size, frame_stack=frame_stack
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(replay_batch_codec, "PART_BYTES", part_bytes)
        monkeypatch.setattr(replay_batch_codec, "FAST_PART_BYTES", fast_bytes)
        try:
            messages = list(BatchEncoder(deferred=deferred).encode(batch))
        except LimitExceededError:
            assert part_bytes < 2**22
            return
    assert len(messages) == 1 or min(part_bytes, fast_bytes) < 2**22
    assert_same(decode(messages, n_entries), batch)


def test_one_stream_carries_batches_of_every_form():
    """Headers are made, and read, once a form: what is remembered of one must not be used for another."""
    encoder, assemblers = BatchEncoder(deferred=True), {n_entries: BatchAssembler(n_entries) for n_entries in (5, 6)}
    for n_steps, n_entries, n_finals in ((3, 5, 4), (3, 5, 4), (3, 5, 0), (1, 5, 0), (3, 5, 4), (3, 6, 4), (2, 5, 3)):
        batch = example_batch(n_steps, n_entries, n_finals=n_finals)
        (message,) = encoder.encode(batch)
        got = assemblers[n_entries].add(message)
        assert got is not None
        assert_same(got, batch)


def test_the_body_is_not_copied():
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    batch = BatchAssembler(5).add(message)
    assert batch is not None
    address = np.frombuffer(message, np.uint8).__array_interface__["data"][0]
    assert 0 < batch.reward.__array_interface__["data"][0] - address < len(message)


@given(st.integers(1, 3), st.integers(1, 9), st.booleans(), st.data())
@settings(max_examples=40)
def test_parts_of_any_size_are_the_batch(n_steps, n_entries, deferred, data):
    batch = example_batch(n_steps, n_entries)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, max(1, n_entries - 1)), max_size=4)) - {n_entries}), n_entries]
    pieces = [batch.entries(start, stop) for start, stop in itertools.pairwise(cuts)]
    got = decode(as_parts(pieces, deferred=deferred), n_entries)
    assert_same(got, batch)
    assert not got.reward.flags.writeable


@pytest.mark.parametrize("part_bytes", [1500, 2**22])
@pytest.mark.parametrize("n_steps", [1, 3])  # slices of the latter have to be copied
@pytest.mark.parametrize("n_finals", [0, 4])
def test_same_batch_with_other_values_is_encoded_again(monkeypatch, n_finals, n_steps, part_bytes):
    monkeypatch.setattr(replay_batch_codec, "FAST_PART_BYTES", part_bytes)
    encoder, assembler = BatchEncoder(deferred=True), BatchAssembler(20)
    batch = example_batch(n_steps, 20, n_finals=n_finals)
    for reward in (1.0, 2.0, 3.0):
        batch.reward[:] = reward
        batch.keys[:] += 1
        batch.substeps["0"].final_observation["a"][:] += 1
        *first, got = [assembler.add(message) for message in encoder.encode(batch)]
        assert bool(first) == (part_bytes < 2**22)
        assert_same(got, batch)


def test_interrupted_encoder_starts_over(monkeypatch):
    monkeypatch.setattr(replay_batch_codec, "FAST_PART_BYTES", 1500)
    encoder, batch = BatchEncoder(deferred=True), example_batch(1, 20, n_finals=0)
    next(encoder.encode(batch))
    assert_same(decode(list(encoder.encode(batch)), 20), batch)
    next(encoder.encode(batch))
    assert_same(decode(list(encoder.encode(batch)), 20), batch)
