"""Calls of which only the headers come: they hold no thread for long, and whoever asks for something is answered."""

import contextlib

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.limits.limits import Limits
from tests.attacks.hostile_clients import half_open_calls
from tests.attacks.limited_calls import ACT, JOIN, STATUS, STREAM, WATCH
from tests.integration.learner_fakes import offer, serve
from tests.rollouts import make_rollout

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
SUBSCRIBE = "/rollcast.v1.PolicyService/SubscribePolicy"
N_CALLS = 200
DEADLINE_S = 20.0


def n_opened(connections):
    return sum(connection.n_opened for connection in connections)


@pytest.mark.parametrize("methods", [[STATUS, HEALTH_CHECK], [JOIN, ACT, SUBSCRIBE, WATCH]])
def test_two_hundred_half_open_calls_deny_nobody_an_answer(methods):
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve())
        connections = stack.enter_context(half_open_calls(learner.address, methods, n_calls=N_CALLS))
        client = stack.enter_context(LearnerClient(learner.address, timeout_s=DEADLINE_S))
        n_asked = 0
        # until all of them have been ended and opened again, where the requests have a deadline of seconds
        while n_asked < 20 or (JOIN not in methods and n_opened(connections) < 2 * N_CALLS):
            assert client.status().env_steps == 12
            with LearnerClient(learner.address, timeout_s=DEADLINE_S) as newcomer:
                assert newcomer.is_serving()
            n_asked += 1
        client.join(offer("a"))
        uplink = client.open_rollout_stream("a", 1)
        stack.callback(uplink.cancel)
        responses = uplink.responses()
        next(responses)
        uplink.send(make_rollout(1))
        assert next(responses).acknowledged_sequence == 1
        learner.source.publish(1, {})
        assert next(iter(client.subscribe_policy()))[0] == 1


def test_a_stream_counts_when_its_request_has_come():
    """Half-open streams take no place of one that is used."""
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve(limits=Limits(max_actors=1)))
        stack.enter_context(half_open_calls(learner.address, [SUBSCRIBE, WATCH, STREAM], n_calls=60))
        client = stack.enter_context(LearnerClient(learner.address))
        for _ in range(10):
            watch = client.watch_status(3600)
            assert next(watch).env_steps == 12
            stack.callback(watch.close)
