import contextlib

import numpy as np
import pytest

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import InvalidTensorError, NotReadyError, UnreadableMessageError
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.limits.texts import shortened
from rollcast.services.policies.service import PolicyServicer
from rollcast.services.wire.error_status import error_from_rpc
from rollcast.v1 import policy_pb2
from tests.integration.learner_fakes import DEADLINE_S


class EndingSource:
    """Has no version, and ends, or does not, just before its server stops."""

    def __init__(self, gate, *, ends):
        self._gate, self._ends = gate, ends
        self.ended = False
        self.subscribed = []

    def newest(self):
        raise NotReadyError("no policy yet")

    @contextlib.contextmanager
    def subscription(self, *, after_version, actor_id, on_end):
        self.subscribed.append(actor_id)
        yield self._end

    def _end(self, timeout_s):
        self.ended = self._ends
        self._gate.stop()


class ActiveContext:
    def is_active(self):
        return True

    def add_callback(self, callback):
        return True


def subscription(*, ends):
    gate = StreamGate()
    servicer = PolicyServicer(EndingSource(gate, ends=ends), gate)
    return servicer.subscribe_policy(policy_pb2.SubscribePolicyRequest(), ActiveContext())


def test_subscriber_hears_of_the_end_before_the_server_stops():
    assert list(subscription(ends=True)) == []


def test_subscriber_of_stopping_server_is_asked_to_come_back():
    with pytest.raises(NotReadyError, match="the learner is stopping"):
        list(subscription(ends=False))


@pytest.mark.parametrize("evaluator_id", ["", "e"])
def test_a_subscription_is_told_when_its_call_ends(evaluator_id):
    class LeavingContext:
        def __init__(self):
            self.callbacks = []

        def is_active(self):
            return not self.callbacks

        def add_callback(self, callback):
            self.callbacks.append(callback)
            return True

    class Source(EndingSource):
        @contextlib.contextmanager
        def subscription(self, *_, on_end, **__):
            on_end(end)
            yield None

    def end():
        pass

    gate, context = StreamGate(), LeavingContext()
    source = Source(gate, ends=True)
    request = policy_pb2.SubscribePolicyRequest(evaluator_id=evaluator_id)
    assert list(PolicyServicer(source, gate, source).subscribe_policy(request, context)) == []
    assert context.callbacks == [end]


def test_the_long_name_of_a_subscriber_is_cut():
    gate = StreamGate()
    source = EndingSource(gate, ends=True)
    request = policy_pb2.SubscribePolicyRequest(actor_id="a" * 10**6)
    assert list(PolicyServicer(source, gate).subscribe_policy(request, ActiveContext())) == []
    assert source.subscribed == [shortened(request.actor_id, MAX_ACTOR_ID_LENGTH)]


def state(version):
    return {"w": np.full(3, version, np.float32)}


def test_answers_unavailable_before_the_first_policy(client):
    with pytest.raises(NotReadyError, match="no policy yet"):
        client.get_policy()
    with pytest.raises(NotReadyError):
        client.act({"": np.zeros((1, 4), np.float32)})


def test_act_returns_actions_and_version(learner, client):
    learner.source.publish(3, state(3))
    action, version = client.act({"": np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)}, deterministic=True)
    assert version == 3
    np.testing.assert_array_equal(action, [1, 0])


ONE = np.zeros((1, 4), np.float32)


@pytest.mark.parametrize(
    ("policy", "observation", "options", "match"),
    [
        ({}, {"x": ONE}, {}, r"\['x'\]; expected \[''\]"),
        ({}, {}, {}, "0 leaves"),
        ({}, {"": np.zeros((1, 5), np.float32)}, {}, r"shape \[1, 5\]; expected \[N, 4\]"),
        ({}, {"": np.zeros(4, np.float32)}, {}, r"shape \[4\]"),
        ({}, {"": np.zeros((0, 4), np.float32)}, {}, "at least one row"),
        ({}, {"": np.zeros((1, 4))}, {}, "float64; expected float32"),
        ({}, {"": np.full((2, 4), np.nan, np.float32)}, {}, r"holds nan at \(n\) = \(0\), element \[0\]"),
        ({}, {"": ONE}, {"substep_key": "9"}, "substep_key is '9'"),
        *(
            ({"state_size": state_size}, {"": ONE}, {"state": wrong}, match)
            for wrong, state_size, match in (
                (np.zeros((2, 3), np.float32), 3, r"the state has shape \[2, 3\]; expected \[1, 3\]"),
                (np.zeros((1, 4), np.float32), 3, r"the state has shape \[1, 4\]; expected \[1, 3\]"),
                (np.zeros((1, 3)), 3, "the state has dtype float64; expected float32"),
                (np.full((1, 3), np.inf, np.float32), 3, "the state holds inf"),
                (np.zeros((1, 3), np.float32), 0, "has a state; expected none, because the policy is not recurrent"),
            )
        ),
        *(
            ({"frame_stack": frame_stack}, {"": ONE}, {"previous": wrong}, match)
            for wrong, frame_stack, match in (
                (
                    {"": np.zeros((2, 2, 4), np.float32)},
                    3,
                    r"previous_observation at '' has shape \[2, 2, 4\]; expected",
                ),
                ({"": np.zeros((1, 3, 4), np.float32)}, 3, r"has shape \[1, 3, 4\]; expected \[1, 2, 4\]"),
                ({"": np.zeros((1, 2, 4))}, 3, "has dtype float64; expected float32"),
                ({"": np.full((1, 2, 4), np.nan, np.float32)}, 3, r"holds nan at \(n, k\) = \(0, 0\)"),
                ({"": np.zeros((1, 2, 4), np.float32)}, 1, "expected none, because the policy takes single frames"),
                ({"other": np.zeros((1, 2, 4), np.float32)}, 3, r"previous_observation has 1 leaves, \['other'\]"),
            )
        ),
    ],
)
def test_rejects_what_does_not_fit_the_policy(learner, client, policy, observation, options, match):
    vars(learner.source).update(policy)
    learner.source.publish(1, state(1))
    with pytest.raises(InvalidTensorError, match=match):
        client.act(observation, **options)


def test_act_returns_the_state_for_the_next_call(learner, client):
    learner.source.state_size = 3
    learner.source.publish(3, state(3))
    observation, memory = {"": np.array([[1, 0, 0, 0], [-2, 0, 0, 0]], np.float32)}, np.zeros((2, 3), np.float32)
    for n_calls in (1, 2):
        client.act(observation, state=memory)
        np.testing.assert_array_equal(memory, n_calls * np.array([[1, 1, 1], [-2, -2, -2]]))
    client.act(observation)  # every episode begins


def test_act_brings_the_frames_before(learner, client):
    learner.source.frame_stack = 3
    learner.source.publish(3, state(3))
    observation, previous = {"": np.zeros((2, 4), np.float32)}, np.ones((2, 2, 4), np.float32)
    client.act(observation, previous={"": previous})
    np.testing.assert_array_equal(learner.source.previous[""], previous)
    client.act(observation)
    assert learner.source.previous is None


def test_rejects_request_that_does_not_parse(learner):
    with make_channel(learner.address) as channel:
        for method in ("Act", "GetPolicy"):
            kind = channel.unary_unary if method == "Act" else channel.unary_stream
            with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
                list(kind(f"/rollcast.v1.PolicyService/{method}")(b"\x07\xff", timeout=DEADLINE_S))
            assert type(error_from_rpc(caught.value, learner.address)) is UnreadableMessageError
