"""ReplayService over a real connection, in front of a real buffer."""

import contextlib
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.served import serve_buffers
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import (
    InvalidInputError,
    InvalidTensorError,
    LearnerUnreachableError,
    LimitExceededError,
    NotReadyError,
    ProtocolMismatchError,
    RollcastError,
)
from rollcast.services.limits.limits import MAX_BATCH_BYTES, Limits
from rollcast.services.replay import batch_codec as replay_batch_codec
from rollcast.services.replay.codec import priorities_from_proto
from rollcast.services.replay.replay import ReplayBatch
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.server.server import REPLAY_SERVICE
from rollcast.services.wire.tensors import fill_tensor
from rollcast.v1 import replay_pb2, replay_pb2_grpc
from tests.actor_kinds import make_policy_for
from tests.buffers import make_buffer
from tests.integration.learner_fakes import serve
from tests.processes import DEADLINE_S, wait_until

ENV = EnvironmentFactory("tests.environments:CountingEnv", {"n_steps": 7})
SPACES = probe_spaces(ENV)
T, B = 8, 4


def play(n_rollouts: int) -> list[Rollout]:
    actors = SequentialDistributedActors(ENV, make_policy_for(ENV), T, 1, B, envs_per_actor=B, seed=3)
    with actors:
        return [actors.next_slice(B).to_rollout() for _ in range(n_rollouts)]


def filled_buffer(*, n_rollouts: int = 2, batch_size: int = 4, **settings: object) -> ReplayBuffer:
    given = {"capacity": 1000, **settings}
    buffer = make_buffer(SPACES, n_rollout_steps=T, batch_size=batch_size, n_envs=B, **given)
    for rollout in play(n_rollouts) if n_rollouts else []:
        buffer.insert(rollout)
    return buffer


@contextlib.contextmanager
def serving(buffer: ReplayBuffer, **options: object) -> Iterator[ReplayClient]:
    with serve(replay=serve_buffers({"0": buffer}, SPACES, n_rollout_steps=T), **options) as learner:
        with ReplayClient(learner.address) as client:
            yield client


def raw_stub(client: ReplayClient, stack: contextlib.ExitStack) -> replay_pb2_grpc.ReplayServiceStub:
    return replay_pb2_grpc.ReplayServiceStub(stack.enter_context(make_channel(client.address)))


def assert_counts_on(batch: ReplayBatch) -> None:
    """Checks the promise of CountingEnv: the next observation is the next step, and so is the reward."""
    columns = batch.substeps["0"]
    (observation,), following = columns.observation[""], columns.next_observation[""]
    np.testing.assert_array_equal(following[:, 1], observation[:, 1] + 1)
    np.testing.assert_array_equal(following[:, [0, 2]], observation[:, [0, 2]])
    np.testing.assert_array_equal(batch.reward[0], following[:, 1])
    np.testing.assert_array_equal(batch.terminated[0], following[:, 1] == 7)


class TestInfo:
    def test_info_equals_that_of_the_buffer(self):
        buffer = filled_buffer(n_rollouts=1, samples_per_insert=2.0)
        with serving(buffer) as client, LearnerClient(client.address) as learner:
            info = client.info()
            assert learner.is_serving(REPLAY_SERVICE)
        there = buffer.info()
        assert (info.size, info.capacity, info.n_bytes) == (there.size, 1000, there.n_bytes)
        assert (info.inserted, info.sampled, info.ignored_updates) == (there.size, 0, 0)
        assert (info.difference, info.max_diff) == (there.limiter.difference, there.limiter.max_diff)
        assert (info.n_rollout_steps, info.n_sample_steps, info.min_size) == (T, 1, 4)
        assert info.spaces == SPACES
        assert info.waiting == ()

    def test_learner_without_a_buffer_rejects_the_call(self):
        with serve() as learner, ReplayClient(learner.address) as client:
            with pytest.raises(ProtocolMismatchError):
                client.info()


class TestSample:
    def test_batches_hold_inserted_transitions(self):
        buffer = filled_buffer()
        with serving(buffer) as client:
            batches = list(client.samples(16, 5))
        assert len(batches) == 5
        for batch in batches:
            assert batch.batch_size == 16
            assert_counts_on(batch)
        assert len({int(key) for batch in batches for key in batch.keys}) > 16
        assert buffer.info().sampled == 80

    @pytest.mark.parametrize("entry", ["transitions", "rollouts"])
    def test_batch_larger_than_a_message_arrives_in_parts(self, monkeypatch: pytest.MonkeyPatch, entry: str):
        buffer = filled_buffer(entry=entry)
        with serving(buffer) as client:
            entry_bytes = client.info().entry_bytes
            with contextlib.ExitStack() as stack:
                monkeypatch.setattr(replay_batch_codec, "PART_BYTES", 3 * entry_bytes + 300)
                request = replay_pb2.SampleRequest(batch_size=8, n_batches=1)
                protos = list(raw_stub(client, stack).Sample(request))
                (batch,) = client.samples(8, 1)
        parts = len(protos)
        assert parts >= 2
        assert [(proto.part, proto.parts) for proto in protos] == [(part, parts) for part in range(parts)]
        assert sum(proto.keys.shape[0] for proto in protos) == 8
        assert batch.batch_size == 8
        if entry == "transitions":
            assert_counts_on(batch)
            return
        columns = batch.substeps["0"]
        t, b = batch.final_index.T
        np.testing.assert_array_equal(columns.final_observation[""][:, 0], columns.observation[""][t, b, 0])

    def test_rejects_entry_larger_than_a_message_with_sizes(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(replay_batch_codec, "PART_BYTES", 10)
        with (
            serving(filled_buffer()) as client,
            pytest.raises(LimitExceededError, match=r"\d+ bytes; expected at most"),
        ):
            list(client.samples(4, 1))

    def test_rejects_huge_batch_before_allocation(self):
        with serving(filled_buffer()) as client, pytest.raises(LimitExceededError, match=str(MAX_BATCH_BYTES)):
            list(client.samples(2**32 - 1, 1))

    @pytest.mark.parametrize(("batch_size", "timeout_s"), [(0, 0.0), (4, -1.0), (4, np.nan), (4, 1e9)])
    def test_rejects_arguments_out_of_range(self, batch_size: int, timeout_s: float):
        with serving(filled_buffer()) as client, pytest.raises(InvalidInputError, match="expected"):
            list(client.samples(batch_size, 1, timeout_s=timeout_s))

    def test_wait_for_an_empty_buffer_ends_at_its_timeout(self):
        with serving(filled_buffer(n_rollouts=0)) as client, pytest.raises(NotReadyError, match=r"0\.1 s"):
            list(client.samples(4, 1, timeout_s=0.1))

    def test_waiting_reader_is_listed_and_gets_the_next_batch(self):
        buffer = filled_buffer(n_rollouts=0)
        with serving(buffer) as client:
            batches = client.samples(4, 1, timeout_s=30.0)
            got: list[ReplayBatch] = []
            reader = threading.Thread(target=lambda: got.extend(batches))
            reader.start()
            wait_until(lambda: client.info().waiting, "somebody to wait")
            for rollout in play(1):
                buffer.insert(rollout)
            reader.join(DEADLINE_S)
        assert len(got) == 1
        assert_counts_on(got[0])


class TestReaders:
    def test_cancelled_reader_frees_its_place(self):
        with serving(filled_buffer(), limits=Limits(max_actors=1)) as client:
            left = [client.samples(4) for _ in range(10)]  # there are ten places
            for batches in left:
                next(batches)
            assert not _can_sample(client)
            left[0].close()
            wait_until(lambda: _can_sample(client), "a free place")
            for batches in left:
                batches.close()

    def test_silent_reader_does_not_delay_others(self):
        buffer = filled_buffer()
        with serving(buffer) as client, contextlib.ExitStack() as stack:
            silent = raw_stub(client, stack).Sample(replay_pb2.SampleRequest(batch_size=64))
            wait_until(lambda: buffer.info().sampled > 0, "the silent reader's first batch")
            for batch in client.samples(16, 200):
                assert_counts_on(batch)
            assert client.update_priorities(batch.keys, np.ones(16)) == 0
            before = -1

            # flow control stops it: what it made the buffer draw comes to an end
            def has_stopped() -> bool:
                nonlocal before
                now, before = before, buffer.info().sampled
                return now == before

            wait_until(has_stopped, "the silent stream to be held up")
            silent.cancel()

    def test_reader_of_large_batches_gets_them_beside_one_of_small_batches(self):
        buffer = filled_buffer(n_rollouts=0, batch_size=64, samples_per_insert=1.0)
        n_read = {1: 0, 64: 0}

        def read(batch_size: int, call: Iterator[replay_pb2.SampleResponse]) -> None:
            with contextlib.suppress(grpc.RpcError):  # cancelled
                for _ in call:
                    n_read[batch_size] += 1

        with serving(buffer) as client, contextlib.ExitStack() as stack:
            stub = raw_stub(client, stack)
            for batch_size in n_read:
                call = stub.Sample(replay_pb2.SampleRequest(batch_size=batch_size, timeout_s=60.0))
                reader = threading.Thread(target=read, args=(batch_size, call))
                reader.start()
                stack.callback(reader.join)
                stack.callback(call.cancel)
            for rollout in play(20):
                # they have drawn what they may, and wait for entries
                wait_until(lambda: len(client.info().waiting) == 2, "both to wait")
                buffer.insert(rollout)
        assert n_read[64] >= 5, "as many samples as entries were to be drawn, and there were 640"

    def test_server_stops_despite_a_silent_reader(self):
        buffer = filled_buffer()
        with contextlib.ExitStack() as stack:
            with serving(buffer) as client:
                silent = raw_stub(client, stack).Sample(replay_pb2.SampleRequest(batch_size=64))
                wait_until(lambda: buffer.info().sampled > 0, "the silent reader's first batch")
            # that its thread has gone, every test is asked by tests/conftest.py
            with pytest.raises(grpc.RpcError) as error:
                list(silent)
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    def test_streams_end_with_the_server(self):
        with serving(filled_buffer(n_rollouts=0)) as client:
            batches = client.samples(4, timeout_s=3600.0)
            errors: list[RollcastError] = []

            def read() -> None:
                try:
                    next(batches)
                except RollcastError as error:
                    errors.append(error)

            reader = threading.Thread(target=read)
            reader.start()
            wait_until(lambda: client.info().waiting, "somebody to wait")
        reader.join(DEADLINE_S)
        assert isinstance(errors[0], NotReadyError | LearnerUnreachableError)


class TestPriorities:
    def test_draws_only_the_entry_with_all_the_priority(self):
        buffer = filled_buffer(sampler="prioritized", alpha=1.0)
        with serving(buffer) as client:
            keys = np.unique(np.concatenate([batch.keys for batch in client.samples(32, 50)]))
            assert len(keys) == client.info().size
            priorities = np.zeros(len(keys))
            priorities[5] = 2.0
            assert client.update_priorities(keys, priorities) == 0
            (batch,) = client.samples(32, 1)
        assert set(batch.keys) == {keys[5]}

    def test_ignores_and_counts_overwritten_and_unknown_keys(self):
        buffer = filled_buffer(n_rollouts=1, capacity=40, sampler="prioritized")
        with serving(buffer) as client:
            keys = np.unique(np.concatenate([batch.keys for batch in client.samples(16, 20)]))
            for rollout in play(4):
                buffer.insert(rollout)
            assert client.update_priorities(keys, np.ones(len(keys))) == len(keys)
            assert client.info().ignored_updates == len(keys)
            assert client.update_priorities([-1, 2**62, -(2**63)], np.ones(3)) == 3, "which there never were"

    def test_rejects_different_numbers_of_keys_and_priorities(self):
        with serving(filled_buffer()) as client, pytest.raises(InvalidTensorError, match="priorities"):
            client.update_priorities([1, 2], [1.0])

    def test_rejects_other_dtypes(self):
        request = replay_pb2.UpdatePrioritiesRequest()
        fill_tensor(request.keys, np.zeros(1, np.int64), what="keys")
        fill_tensor(request.priorities, np.zeros(1, np.int64), what="priorities")
        with pytest.raises(InvalidTensorError, match="float32 or float64"):
            priorities_from_proto(request)


class TestReset:
    def test_reset_empties_the_buffer_which_fills_again(self):
        buffer = filled_buffer()
        with serving(buffer) as client:
            (batch,) = client.samples(4, 1)
            client.reset()
            info = client.info()
            assert (info.size, info.inserted, info.sampled) == (0, 0, 0)
            assert client.update_priorities(batch.keys, np.ones(4)) == 4
            for rollout in play(1):
                buffer.insert(rollout)
            (again,) = client.samples(4, 1)
            assert not set(again.keys) & set(batch.keys)


def _can_sample(client: ReplayClient) -> bool:
    try:
        return len(list(client.samples(4, 1))) == 1
    except LimitExceededError:
        return False
