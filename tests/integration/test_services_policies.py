"""PolicyService over a real connection."""

import threading

import numpy as np
import pytest

from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import InvalidTensorError, LearnerUnreachableError, NotReadyError, UnreadableMessageError
from rollcast.services.wire.error_status import error_from_rpc
from rollcast.v1 import policy_pb2
from tests.integration.learner_fakes import DEADLINE_S, serve


@pytest.fixture
def learner():
    with serve() as fake:
        yield fake


@pytest.fixture
def client(learner):
    with LearnerClient(learner.address, timeout_s=DEADLINE_S) as client:
        yield client


def state(version, n=3):
    return {"w": np.full(n, version, np.float32)}


def test_no_policy_yet(client):
    with pytest.raises(NotReadyError, match="no policy yet"):
        client.get_policy()
    with pytest.raises(NotReadyError):
        client.act({"": np.zeros((1, 4), np.float32)})


def test_get_policy_of_several_chunks(learner, client):
    learner.source.publish(4, state(4, 1_000_000))
    version, actual = client.get_policy()
    assert version == 4
    np.testing.assert_array_equal(actual["w"], state(4, 1_000_000)["w"])


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


def test_a_subscriber_that_came_before_the_first_policy_waits(learner, client):
    policies = iter(client.subscribe_policy())
    publisher = threading.Timer(0.01, learner.source.publish, (1, state(1)))
    publisher.start()
    assert next(policies)[0] == 1
    publisher.join(DEADLINE_S)


def test_versions_it_has_are_skipped_and_those_of_another_learner_are_not(learner, client):
    learner.source.publish(5, state(5))
    learner.source.end()
    assert [version for version, _ in client.subscribe_policy(after_version=5)] == []
    assert [version for version, _ in client.subscribe_policy(after_version=4)] == [5]
    assert [version for version, _ in client.subscribe_policy(after_version=99)] == [5]


def test_a_slow_subscriber_misses_versions_and_delays_nobody(learner, client):
    n_versions = 12
    learner.source.publish(1, state(1, 2_000_000))  # 8 MB: above any flow-control window
    slow = iter(client.subscribe_policy())
    assert next(slow)[0] == 1
    with LearnerClient(learner.address) as other:
        fast = iter(other.subscribe_policy())
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


def test_every_subscriber_gets_the_same_bytes(learner):
    learner.source.publish(1, state(1, 500_000))
    learner.source.end()
    received = []
    with make_channel(learner.address) as channel:
        for method, request in (
            ("GetPolicy", policy_pb2.GetPolicyRequest()),
            ("SubscribePolicy", policy_pb2.SubscribePolicyRequest()),
            ("SubscribePolicy", policy_pb2.SubscribePolicyRequest()),
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


def test_act(learner, client):
    learner.source.publish(3, state(3))
    action, version = client.act({"": np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)}, deterministic=True)
    assert version == 3
    np.testing.assert_array_equal(action, [1, 0])


@pytest.mark.parametrize(
    ("observation", "options", "match"),
    [
        ({"x": np.zeros((1, 4), np.float32)}, {}, r"\['x'\]; expected \[''\]"),
        ({}, {}, "0 leaves"),
        ({"": np.zeros((1, 5), np.float32)}, {}, r"shape \[1, 5\]; expected \[N, 4\]"),
        ({"": np.zeros(4, np.float32)}, {}, r"shape \[4\]"),
        ({"": np.zeros((0, 4), np.float32)}, {}, "at least one row"),
        ({"": np.zeros((1, 4))}, {}, "float64; expected float32"),
        ({"": np.full((2, 4), np.nan, np.float32)}, {}, r"holds nan at \(n\) = \(0\), element \[0\]"),
        ({"": np.zeros((1, 4), np.float32)}, {"substep_key": "9"}, "substep_key is '9'"),
    ],
)
def test_observations_that_do_not_fit(learner, client, observation, options, match):
    learner.source.publish(1, state(1))
    with pytest.raises(InvalidTensorError, match=match):
        client.act(observation, **options)


def test_a_request_that_does_not_parse(learner):
    with make_channel(learner.address) as channel:
        for method in ("Act", "GetPolicy"):
            kind = channel.unary_unary if method == "Act" else channel.unary_stream
            with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
                list(kind(f"/rollcast.v1.PolicyService/{method}")(b"\x07\xff", timeout=DEADLINE_S))
            assert type(error_from_rpc(caught.value, learner.address)) is UnreadableMessageError
