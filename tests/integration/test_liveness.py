"""Connections that died unseen are found on both sides, and those that live are left alone."""

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from rollcast.actor.connection.learner import LearnerConnection
from rollcast.services.client import channel
from rollcast.services.client.channel import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS
from rollcast.services.client.client import LearnerClient
from rollcast.services.environments.dialled import Farewell
from rollcast.services.errors import LearnerUnreachableError
from rollcast.services.server import server
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.server.listening import MIN_PING_INTERVAL_MS
from rollcast.services.spaces.codec import environment_spaces_to_proto
from tests.chaos.playing import rollcast_play
from tests.chaos.proxy import Proxy
from tests.integration.learner_fakes import FakeLearner, offer, serve
from tests.play_messages import FLAT
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import make_rollout
from tests.unit.services.server.test_environments import Sink

# gRPC pings once a second at most; a machine with other work may be slow to answer.
SHORT = {
    "grpc.keepalive_time_ms": 1_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.http2.ping_timeout_ms": 5_000,
    "grpc.http2.min_ping_interval_without_data_ms": 100,
}


def test_finds_dead_connection_within_ten_seconds():
    for options in (dict(channel._OPTIONS), dict(server.SERVER_OPTIONS)):
        assert options["grpc.keepalive_time_ms"] == KEEPALIVE_TIME_MS
        # the shorter of the two has the last word
        assert options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"] == KEEPALIVE_TIMEOUT_MS
    assert KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS <= 9_000
    assert MIN_PING_INTERVAL_MS < KEEPALIVE_TIME_MS


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLearner]:
    for module, name in ((channel, "_OPTIONS"), (server, "SERVER_OPTIONS")):
        monkeypatch.setattr(
            module, name, tuple((option, SHORT.get(option, value)) for option, value in getattr(module, name))
        )
    with serve() as fake:
        fake.source.publish(1, {"w": np.zeros(1, np.float32)})
        yield fake


@pytest.fixture
def proxy(learner: FakeLearner) -> Iterator[Proxy]:
    proxy = Proxy(learner.server.port, seed=0)
    yield proxy
    proxy.close()


def test_both_sides_find_a_black_hole(learner: FakeLearner, proxy: Proxy):
    with LearnerClient(proxy.address) as client:
        client.join(offer())
        uplink = client.open_rollout_stream("a", 1)
        responses, policies = uplink.responses(), iter(client.subscribe_policy())
        next(responses)
        next(policies)
        ends: list[str] = []

        def read(name: str, stream: Iterator[object]) -> None:
            with pytest.raises(LearnerUnreachableError, match="ping timeout"):
                next(stream)
            ends.append(name)

        readers = [
            threading.Thread(target=read, args=pair) for pair in (("rollouts", responses), ("policies", policies))
        ]
        assert proxy.inject("black_hole", 0.0, 0.0)
        for reader in readers:
            reader.start()
        # the slot is free: the stream was not ended as agreed
        learner.sink.wait_for(lambda: learner.sink.streams[0].closes == [False])
        for reader in readers:
            reader.join(DEADLINE_S)
        assert sorted(ends) == ["policies", "rollouts"]


def send_the_first(connection: LearnerConnection) -> None:
    """Joins, and sees a rollout acknowledged."""
    connection.join()
    wait_until(lambda: connection.wait_for_credit(1, 0.1), "credit")
    connection.send(make_rollout(1))
    assert connection.drain(DEADLINE_S) == 0


def test_actor_recovers_from_a_black_hole_without_duplicates(learner: FakeLearner, proxy: Proxy):
    learner.sink.resumes = True
    with LearnerConnection(proxy.address, offer()) as connection:
        send_the_first(connection)
        assert proxy.inject("black_hole", 0.0, 0.0)
        connection.send(make_rollout(2))
        learner.sink.wait_for(lambda: len(learner.sink.streams) > 1)
        assert connection.drain(DEADLINE_S) == 0
        assert [rollout.sequence for rollout in learner.sink.rollouts] == [1, 2]


def test_actor_notices_a_lost_rollout(
    learner: FakeLearner, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A flipped bit in the length of a message: the learner waits for the rest of it, and pings are answered."""
    monkeypatch.setattr("rollcast.actor.connection.stall_detector.SILENCE_S", 1.0)
    monkeypatch.setattr("tests.chaos.proxy._ROLLOUT_BYTES", 200)
    learner.sink.resumes = True
    with LearnerConnection(proxy.address, offer()) as connection:
        send_the_first(connection)
        proxy.inject("inflate", 0.0, 0.0)
        connection.send(make_rollout(2))
        assert not connection.wait_for_credit(9, 3.0)
        assert len(learner.sink.streams) == 1, "a learner that is busy is left alone"
        learner.sink.awaiting_s = 3.0
        wait_until(lambda: connection.wait_for_credit(6, 0.1), "credit for what comes after the lost one")
        assert [rollout.sequence for rollout in learner.sink.rollouts] == [1, 2]
    assert "rollout 2, for which the learner has waited for 3 s, was lost" in caplog.text


def test_long_rollout_is_not_taken_for_a_lost_message(learner: FakeLearner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollcast.actor.connection.stall_detector.SILENCE_S", 0.5)
    learner.sink.awaiting_s = 60.0
    learner.sink.capacity = 0
    with LearnerConnection(learner.address, offer()) as connection:
        connection.join()
        wait_until(lambda: connection.wait_for_credit(1, 0.1), "credit")
        threading.Event().wait(1.0)  # it plays
        connection.send(make_rollout(1))
        assert not connection.wait_for_credit(9, 0.1)
        wait_until(connection.take_policy, "the policy")
        with learner.sink.changed:
            learner.sink.capacity = 1
        assert connection.drain(DEADLINE_S) == 0
        assert len(learner.sink.streams) == 1


class TestClientOfEnvironments:
    """The Python client of `clients/`."""

    def test_finds_a_lost_server_when_it_says(self):
        options = dict(rollcast_play.OPTIONS)
        assert options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"]

    def test_leaves_a_black_hole_and_dials_again(self, monkeypatch: pytest.MonkeyPatch):
        short = [(option, SHORT.get(option, value)) for option, value in rollcast_play.OPTIONS]
        monkeypatch.setattr(rollcast_play, "OPTIONS", short)
        sink = Sink()
        # it waits for its actions then, and has nothing to send
        sink.answers = False
        with (
            EnvironmentServer("127.0.0.1:0", sink) as server,
            contextlib.closing(Proxy(int(server.address.rpartition(":")[2]), seed=0)) as proxy,
        ):
            player = rollcast_play.Player([Still()], environment_spaces_to_proto(FLAT))
            thread = threading.Thread(target=player.play, args=(proxy.address,), daemon=True)
            thread.start()
            sink.taken.get(timeout=DEADLINE_S)
            assert proxy.inject("black_hole", 0.0, 0.0)
            sink.taken.get(timeout=DEADLINE_S)
            sink.clients[1].end(Farewell(reason="training has ended", training_ended=True))
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


class Still:
    """An environment that shows the same for ever."""

    def reset(self, seed: int | None) -> object:
        del seed
        return rollcast_play.single_turn([0.5, -0.5])

    def step(self, actions: object) -> object:
        return self.reset(None)
