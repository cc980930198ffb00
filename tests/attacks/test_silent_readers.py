"""Clients that send or subscribe and never read: what they cost is bounded, and the others are served."""

import contextlib
import itertools

import grpc
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.limits.limits import Limits
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.v1 import policy_pb2, rollout_pb2
from tests.attacks.silent_readers import ServedLearner, served_learner
from tests.integration.learner_fakes import SMALL_WINDOW
from tests.processes import wait_until
from tests.rollouts import make_rollout

POLICY_BYTES = 8 << 20
# The messages that gRPC may hold for one stream: its window, a message in the making, and one that waits.
STREAM_BYTES = 4 << 20
N_SUBSCRIBERS, N_VERSIONS = 6, 24
OPENING = rollout_pb2.StreamRolloutsRequest(open=rollout_pb2.OpenStream(actor_id="a", incarnation=1))
CANCELLED = grpc.StatusCode.CANCELLED


@contextlib.contextmanager
def silent_stream(learner, method, requests):
    """A stream of which nothing is read: gRPC takes what fits the window, and no more."""
    with grpc.insecure_channel(learner.address, options=SMALL_WINDOW) as channel:
        call = channel.stream_stream(f"/rollcast.v1.{method}")(requests)
        yield call
        call.cancel()


def status_of(call):
    """Reads what is there."""
    with pytest.raises(grpc.RpcError):
        for _ in call:
            pass
    return call.code()


def test_clients_that_never_read():
    with (
        served_learner(Limits(max_actors=16, stalled_stream_s=3.0)) as learner,
        LearnerClient(learner.address) as other,
    ):
        subscribers_that_never_read(learner, other)
        a_sender_that_never_reads(learner)
        assert other.status().env_steps == 12
        assert other.get_policy()[0] == N_VERSIONS


def subscribers_that_never_read(learner: ServedLearner, other: LearnerClient) -> None:
    """Each holds one version, until it is ended, whatever is cast meanwhile."""
    request = policy_pb2.SubscribePolicyRequest().SerializeToString()
    learner.publish(1, POLICY_BYTES)
    policies = iter(other.subscribe_policy())
    next(policies)
    before, most = learner.resident_bytes(), 0
    with contextlib.ExitStack() as stack:
        calls = []
        for version in range(2, N_VERSIONS + 1):
            if len(calls) < N_SUBSCRIBERS:
                silent = silent_stream(learner, "PolicyService/SubscribePolicy", iter([request]))
                calls.append(stack.enter_context(silent))
            learner.publish(version, POLICY_BYTES)
            assert next(policies)[0] <= version
            most = max(most, learner.resident_bytes() - before)
        # a version of its own for each, and what its stream holds; the encoder takes three copies of one
        assert most < N_SUBSCRIBERS * (POLICY_BYTES + STREAM_BYTES) + 4 * POLICY_BYTES
        wait_until(lambda: learner.throttled().get("stalled_stream_s") == N_SUBSCRIBERS, "all of them to be ended")
        assert [status_of(call) for call in calls] == [CANCELLED] * N_SUBSCRIBERS
    wait_until(lambda: learner.n_policies() == 1, "their versions to be let go")


def a_sender_that_never_reads(learner: ServedLearner) -> None:
    """Its rollouts are taken while the answers fit its window; then nothing is read from it either."""

    def flood():
        yield OPENING.SerializeToString()
        for sequence in itertools.count(1):
            yield from RolloutEncoder().encode(make_rollout(sequence))

    before, ended_before = learner.resident_bytes(), learner.throttled()["stalled_stream_s"]
    with silent_stream(learner, "RolloutService/StreamRollouts", flood()) as call:
        wait_until(lambda: learner.throttled()["stalled_stream_s"] > ended_before, "it to be ended")
        assert learner.n_rollouts() < 10_000
        assert status_of(call) is CANCELLED
    assert learner.resident_bytes() - before < STREAM_BYTES + POLICY_BYTES
