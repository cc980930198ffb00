"""LearnerService, health, reflection, addresses and the life of a server, over a real connection."""

import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rollcast.services.client import channel, health_probe
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    AddressInUseError,
    ConfigurationError,
    InvalidInputError,
    LearnerUnreachableError,
    LimitExceededError,
    NotReadyError,
    ProtocolMismatchError,
    RefusedError,
    UnknownActorError,
)
from rollcast.services.limits.limits import Limits
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server import server
from rollcast.services.server.server import LEARNER_SERVICE, POLICY_SERVICE, ROLLOUT_SERVICE
from rollcast.services.status.status import Phase
from tests.integration.learner_fakes import DEADLINE_S, offer, serve
from tests.rollouts import make_rollout


@pytest.fixture
def learner():
    with serve() as fake:
        yield fake


@pytest.fixture
def client(learner):
    with LearnerClient(learner.address, timeout_s=DEADLINE_S) as client:
        yield client


def test_control_calls(learner, client):
    assert client.status() == learner.control.status()
    assert client.actors() == tuple(learner.control.actors())
    client.pause()
    client.pause()
    client.resume()
    client.stop()
    assert learner.control.calls == ["pause", "pause", "resume", "stop"]
    assert client.save_checkpoint() == ("/run/checkpoint", 3)


def test_control_calls_that_are_refused(learner, client):
    learner.control.phase, learner.control.run_dir = Phase.FINISHED, ""
    with pytest.raises(RefusedError, match="training has ended"):
        client.pause()
    with pytest.raises(RefusedError, match="no directory"):
        client.save_checkpoint()


def test_watching_ends_with_training(learner, client):
    statuses = client.watch_status(0.1)
    assert [status.phase for status in itertools.islice(statuses, 2)] == [Phase.TRAINING] * 2
    learner.control.phase = Phase.FINISHED
    assert list(statuses)[-1].phase is Phase.FINISHED


def test_a_slow_watch_notices_the_end_of_training(learner, client):
    statuses = client.watch_status(3600)
    next(statuses)
    learner.control.phase = Phase.FINISHED
    assert next(statuses).phase is Phase.FINISHED
    assert list(statuses) == []


def test_closing_a_watch_frees_its_thread(learner, client):
    with serve(limits=Limits(max_actors=1)) as small, LearnerClient(small.address) as other:
        for _ in range(30):  # three times the streams there may be
            statuses = other.watch_status(3600)
            deadline = time.monotonic() + DEADLINE_S
            while True:
                try:
                    next(statuses)
                    break
                except LimitExceededError:
                    assert time.monotonic() < deadline
                    statuses = other.watch_status(3600)
            statuses.close()


@pytest.mark.parametrize("interval_s", [0.01, -1, 3601, float("nan"), float("inf")])
def test_intervals_outside_the_range(client, interval_s):
    with pytest.raises(InvalidInputError, match="interval_s is"):
        next(client.watch_status(interval_s))


def test_health_and_drain(learner, client):
    services = ("", ROLLOUT_SERVICE, POLICY_SERVICE, LEARNER_SERVICE)
    assert all(client.is_serving(service) for service in services)
    with pytest.raises(UnknownActorError):
        client.is_serving("no.such.Service")
    client.join(offer())
    uplink = client.open_rollout_stream("a", 1)
    responses = uplink.responses()
    next(responses)
    learner.server.drain()
    assert not any(client.is_serving(service) for service in services)
    with pytest.raises(NotReadyError, match="draining"):
        list(client.subscribe_policy())
    uplink.send(make_rollout(1))  # what is open goes on
    assert next(responses).acknowledged_sequence == 1
    assert client.status().env_steps == 12
    uplink.cancel()


def test_a_silent_stream_survives_keepalive(monkeypatch):
    # shorter intervals, of the same ratio; gRPC pings once a second at most and forgives two pings too many
    monkeypatch.setattr(channel, "_OPTIONS", faster(channel._OPTIONS))
    monkeypatch.setattr(server, "_OPTIONS", faster(server._OPTIONS))
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.source.publish(1, {"w": np.zeros(1)})
        policies = iter(client.subscribe_policy())
        assert next(policies)[0] == 1
        later = threading.Timer(3.5, learner.source.publish, (2, {"w": np.zeros(1)}))
        later.start()
        assert next(policies)[0] == 2
        later.join(DEADLINE_S)


def faster(options):
    short = ("grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms")
    return tuple((name, value // 40 if name in short else value) for name, value in options)


def test_a_method_that_the_health_service_does_not_have(learner):
    with make_channel(learner.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_probe(learner):
    # as the images do: without a look at what is installed, gRPC least of all
    command = [sys.executable, "-I", "-S", health_probe.__file__, learner.address]
    done = subprocess.run([*command, ROLLOUT_SERVICE], timeout=30, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    learner.server.drain()
    assert health_probe.probe(learner.address) == (
        f"the server at {learner.address} is NOT_SERVING; expected SERVING; it may be starting or draining"
    )


def test_the_probe_says_why_not(learner, capsys):
    assert health_probe.main([learner.address, "no.such.Service"]) == 1
    assert health_probe.main(["127.0.0.1:1"]) == 1
    assert health_probe.main(["nonsense"]) == 1
    assert health_probe.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "no learner answers at 127.0.0.1:1" in lines[1]


def test_reflection_knows_every_service(learner):
    with make_channel(learner.address) as connection:
        database = ProtoReflectionDescriptorDatabase(connection)
        assert {ROLLOUT_SERVICE, POLICY_SERVICE, LEARNER_SERVICE, "grpc.health.v1.Health"} <= set(
            database.get_services()
        )
        pool = descriptor_pool.DescriptorPool(database)
        assert {m.name for m in pool.FindServiceByName(POLICY_SERVICE).methods} == {
            "GetPolicy",
            "SubscribePolicy",
            "Act",
        }


def test_nobody_there():
    with LearnerClient("127.0.0.1:1", timeout_s=2) as client:
        with pytest.raises(LearnerUnreachableError, match=r"no learner answers at 127\.0\.0\.1:1"):
            client.status()
        with pytest.raises(LearnerUnreachableError):
            list(client.subscribe_policy())
        with pytest.raises(LearnerUnreachableError):
            list(client.open_rollout_stream("a", 1).responses())


def test_a_server_that_is_no_learner():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        stranger = grpc.server(executor)
        port = stranger.add_insecure_port("127.0.0.1:0")
        stranger.start()
        with LearnerClient(f"127.0.0.1:{port}") as client, pytest.raises(ProtocolMismatchError, match="UNIMPLEMENTED"):
            client.status()
        stranger.stop(0).wait(DEADLINE_S)


def test_no_answer_in_time():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        LearnerClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2) as client,
    ):
        with pytest.raises(LearnerUnreachableError):
            client.status()


def test_two_servers_on_one_port(learner, client):
    with pytest.raises(AddressInUseError, match=re.escape(f"'{learner.address}' is in use")), serve(learner.address):
        pass
    assert client.status().env_steps == 12


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("no-such-host.invalid:0", "cannot be resolved"),
        ("192.0.2.1:0", "cannot be bound"),
        ("unix:/no/such/folder/x", "has no folder"),
        ("nonsense", "cannot be used"),
    ],
)
def test_addresses_that_cannot_be_taken(address, match):
    with pytest.raises(ConfigurationError, match=match), serve(address, security=ServerSecurity(insecure=True)):
        pass


def test_max_actors_is_validated():
    with pytest.raises(ConfigurationError, match="max_actors is 0"), serve(limits=Limits(max_actors=0)):
        pass


def test_a_unix_socket_is_served_guarded_and_removed(tmp_path):
    path = tmp_path / "learner.sock"
    with serve(f"unix:{path}") as learner:
        assert learner.server.port == 0
        assert learner.address == f"unix:{path}"
        with LearnerClient(learner.address) as client:
            assert client.status().env_steps == 12
            with pytest.raises(AddressInUseError, match=r"learner\.sock"), serve(learner.address):
                pass
            assert client.is_serving()
        with LearnerClient(learner.address) as another:
            assert another.is_serving()
    assert list(tmp_path.iterdir()) == []


def test_a_stale_socket_is_replaced_and_a_file_is_not(tmp_path):
    path = tmp_path / "learner.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    with serve(f"unix:{path}") as learner, LearnerClient(learner.address) as client:
        assert client.is_serving()
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="is not a socket"), serve(f"unix:{path}"):
        pass
    assert path.read_text() == "mine"


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root, whom CI may run as, may write anywhere
    with pytest.raises(ConfigurationError, match="may write to"), serve(f"unix:{tmp_path}/x"):
        pass


def test_a_server_before_its_start_has_no_port():
    idle = server.make_server("127.0.0.1:0", sink=None, source=None, control=None)
    with pytest.raises(NotReadyError, match="no port yet"):
        _ = idle.port
    idle.stop(0)


def test_stop_twice_and_nothing_is_left(learner, client):
    client.status()
    learner.server.stop(0.1)
    learner.server.stop(0.1)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rollcast-rpc")]
    with pytest.raises(LearnerUnreachableError):
        client.status()


def test_a_client_comes_back_to_a_learner_that_restarts():
    with serve() as first:
        address = first.address
        client = LearnerClient(address, timeout_s=DEADLINE_S)
        assert client.is_serving()
    with client, serve(address):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                assert client.is_serving()
                break
            except LearnerUnreachableError:
                assert time.monotonic() < deadline


def test_policies_of_many_megabytes_over_a_unix_socket(tmp_path):
    with serve(f"unix:{tmp_path}/x") as learner, LearnerClient(learner.address) as client:
        learner.source.publish(1, {"w": np.arange(3_000_000, dtype=np.float32)})
        assert client.get_policy()[1]["w"][-1] == 2_999_999
