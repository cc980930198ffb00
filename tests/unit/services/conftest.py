"""A learner's server without a learner behind it, and clients of it."""

import pytest

from rollcast.services.client.client import LearnerClient
from tests.integration.learner_fakes import DEADLINE_S, offer, serve


@pytest.fixture
def learner():
    with serve() as fake:
        yield fake


@pytest.fixture(autouse=True)
def subscriptions_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets subscriptions notice soon that their server stops, where each look is a second after the one before."""
    monkeypatch.setattr("rollcast.services.policies.service._WAIT_S", 0.05)


@pytest.fixture
def client(learner):
    with LearnerClient(learner.address, timeout_s=DEADLINE_S) as client:
        yield client


@pytest.fixture
def uplink(learner, client):
    agreement = client.join(offer())
    uplink = client.open_rollout_stream(agreement.actor_id, agreement.incarnation)
    yield uplink
    uplink.cancel()
    learner.sink.wait_for(lambda: all(len(stream.closes) == 1 for stream in learner.sink.streams))
