import itertools

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import NotReadyError, ProtocolMismatchError
from rollcast.services.server.server import make_server
from rollcast.services.status.status import Phase
from tests.integration.learner_fakes import FakeControl, FakeSink, FakeSource


def test_the_first_update_has_the_run_and_the_next_ones_what_is_new(learner, client):
    first, second, third = itertools.islice(client.watch_history(0.1), 3)
    assert first.run.env_id == "Fake-v0"
    assert (second.run, third.run) == (None, None)
    assert [update.now_s for update in (first, second, third)] == [1.0, 2.0, 3.0]
    assert [point.time_s for point in third.points] == [3.0]
    assert third.status == learner.control.status()
    assert third.actors == tuple(learner.control.actors())


def test_a_slow_watch_gets_the_last_news_when_the_learner_stops(learner, client):
    updates = client.watch_history(3600)
    assert next(updates).now_s == 1.0
    learner.control.phase = Phase.STOPPING
    learner.server.stop(2.0)
    last = next(updates)
    assert (last.now_s, last.status.phase) == (2.0, Phase.STOPPING)
    with pytest.raises(NotReadyError, match="stopping"):
        next(updates)


def test_the_status_tells_of_clients_that_met_a_limit(learner, client):
    learner.server.refusals.note("10.0.0.9", "max_streams")
    assert [(one.who, one.limit) for one in next(client.watch_history()).status.throttled] == [
        ("10.0.0.9", "max_streams")
    ]


def test_a_learner_without_a_history_does_not_know_the_call():
    server = make_server("127.0.0.1:0", sink=FakeSink(), source=FakeSource(), control=FakeControl())
    server.start()
    try:
        with LearnerClient(server.address) as client, pytest.raises(ProtocolMismatchError):
            next(client.watch_history())
    finally:
        server.stop(0.0)
