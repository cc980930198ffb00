"""How a subscription to policies ends."""

import pytest

from rollcast.services.errors import NotReadyError
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.policies.service import PolicyServicer
from rollcast.v1 import policy_pb2


class EndingSource:
    """Has no version, and ends, or does not, just before its server stops."""

    def __init__(self, gate, *, ends):
        self._gate, self._ends = gate, ends
        self.ended = False

    def newest(self):
        raise NotReadyError("no policy yet")

    def wait_newer(self, version, timeout_s):
        self.ended = self._ends
        self._gate.stop()


class ActiveContext:
    def is_active(self):
        return True


def subscription(*, ends):
    gate = StreamGate()
    servicer = PolicyServicer(EndingSource(gate, ends=ends), gate)
    return servicer.subscribe_policy(policy_pb2.SubscribePolicyRequest(), ActiveContext())


def test_the_end_of_training_is_told_by_a_server_that_stops_at_once():
    assert list(subscription(ends=True)) == []


def test_without_an_end_who_waits_is_to_come_back():
    with pytest.raises(NotReadyError, match="the learner is stopping"):
        list(subscription(ends=False))
