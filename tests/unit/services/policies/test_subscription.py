import threading

import grpc
import numpy as np
import pytest

from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, NotReadyError
from rollcast.services.policies.subscription import PolicySubscription
from rollcast.v1 import policy_pb2
from tests.integration.learner_fakes import DEADLINE_S, SMALL_WINDOW, serve

pytestmark = pytest.mark.slow


def state(version, n=3):
    return {"w": np.full(n, version, np.float32)}


def test_a_subscriber_gets_the_newest_then_every_newer_until_the_end(learner, client):
    learner.source.publish(5, state(5))
    policies = iter(client.subscribe_policy())
    for version in (5, 6, 7):
        actual_version, actual = next(policies)
        assert actual_version == version
        assert actual["w"][0] == version
        learner.source.publish(version + 1, state(version + 1))
    learner.source.end()
    assert [version for version, _ in policies] == [8]


def test_skips_known_versions_unless_they_come_from_another_learner(learner, client):
    learner.source.publish(5, state(5))
    learner.source.end()
    assert [version for version, _ in client.subscribe_policy(after_version=5)] == []
    assert [version for version, _ in client.subscribe_policy(after_version=4)] == [5]
    assert [version for version, _ in client.subscribe_policy(after_version=99)] == [5]


def test_a_slow_subscriber_misses_versions_and_delays_nobody(learner, client):
    n_versions = 12
    learner.source.publish(1, state(1, 2_000_000))  # 8 MB: above the window
    with grpc.insecure_channel(learner.address, options=SMALL_WINDOW) as channel:
        slow = iter(PolicySubscription(channel, learner.address))
        assert next(slow)[0] == 1
        fast = iter(client.subscribe_policy())
        for version in range(2, n_versions + 1):
            assert next(fast)[0] == version - 1  # in step with the learner while the slow one reads nothing
            learner.source.publish(version, state(version, 2_000_000))
        learner.source.end()
        assert [version for version, _ in fast] == [n_versions]
        seen = [version for version, _ in slow]
    assert seen[-1] == n_versions
    assert seen == sorted(set(seen))
    assert len(seen) < n_versions // 2
    assert learner.source.n_encodings == n_versions


def test_subscribers_that_take_no_encoding_or_an_unknown_one_get_the_same_bytes(learner):
    learner.source.publish(1, state(1, 500_000))
    learner.source.end()
    received = []
    with make_channel(learner.address) as channel:
        for method, request in (
            ("GetPolicy", policy_pb2.GetPolicyRequest()),
            ("SubscribePolicy", policy_pb2.SubscribePolicyRequest()),
            ("SubscribePolicy", policy_pb2.SubscribePolicyRequest(encodings=[99], base_digest=b"x")),
        ):
            call = channel.unary_stream(f"/rollcast.v1.PolicyService/{method}")
            received.append(tuple(call(request.SerializeToString(), timeout=DEADLINE_S)))
    assert set(received) == {learner.source.encoded.chunks}
    assert learner.source.n_encodings == 1


def test_cancel_ends_a_subscription_without_an_error(client):
    subscription = client.subscribe_policy()
    canceller = threading.Timer(0.01, subscription.cancel)
    canceller.start()
    assert list(subscription) == []
    canceller.join(DEADLINE_S)


def test_stopping_the_server_ends_subscriptions_with_an_error():
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.source.publish(1, state(1))
        policies = iter(client.subscribe_policy())
        next(policies)
        stopper = threading.Thread(target=learner.server.stop, args=(2.0,), name="stopper")
        stopper.start()
        with pytest.raises((NotReadyError, LearnerUnreachableError)):
            next(policies)
        stopper.join(DEADLINE_S)
