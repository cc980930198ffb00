import math
import time

import grpc
import pytest

from rollcast.services.client import health_probe
from rollcast.services.client.client import LearnerClient
from rollcast.services.client.relay import RelayClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import (
    ConfigurationError,
    LearnerUnreachableError,
    ProtocolMismatchError,
)
from rollcast.services.joining.join import Relay
from rollcast.services.limits.limits import LONGEST_WAIT_S
from tests.integration.learner_fakes import DEADLINE_S, serve


def test_missing_learner_is_reported_with_its_address():
    with LearnerClient("127.0.0.1:1", timeout_s=2) as client:
        with pytest.raises(LearnerUnreachableError, match=r"no learner answers at 127\.0\.0\.1:1"):
            client.status()
        with pytest.raises(LearnerUnreachableError):
            list(client.subscribe_policy())
        with pytest.raises(LearnerUnreachableError):
            list(client.open_rollout_stream("a", 1).responses())


def test_no_proxy_stands_between_client_and_learner(learner, monkeypatch):
    # sites often set them for every program; gRPC itself would take one, for this machine too
    for variable in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    for variable in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with LearnerClient(learner.address, timeout_s=DEADLINE_S) as client:
        assert client.is_serving()
    assert health_probe.probe(learner.address) is None


def test_server_that_is_not_a_learner_is_reported():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        stranger = grpc.server(executor)
        port = stranger.add_insecure_port("127.0.0.1:0")
        stranger.start()
        with LearnerClient(f"127.0.0.1:{port}") as client, pytest.raises(ProtocolMismatchError, match="UNIMPLEMENTED"):
            client.status()
        stranger.stop(0).wait(DEADLINE_S)


CALLS = {
    "unary": LearnerClient.status,
    "a stream that is read": lambda client: next(client.watch_status()),
    "rollouts": lambda client: client.open_rollout_stream("a", 1),
    "policies": LearnerClient.subscribe_policy,
    "bundles": lambda client: client.open_bundles(Relay("rack-1", 7)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_begins_when_another_thread_has_closed_the_client_is_reported(call):
    client = RelayClient("127.0.0.1:1", timeout_s=2)
    client.close()
    with pytest.raises(LearnerUnreachableError, match=r"127\.0\.0\.1:1 has been closed on this side"):
        CALLS[call](client)


def test_client_reconnects_to_restarted_learner():
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


@pytest.mark.parametrize("client", [LearnerClient, ReplayClient])
def test_takes_the_longest_timeout_and_refuses_those_outside_the_range(client):
    with client("127.0.0.1:1", timeout_s=LONGEST_WAIT_S) as made:
        assert made.address == "127.0.0.1:1"
    for timeout_s in (0.0, -1.0, math.nan, math.inf, 1e12):
        with pytest.raises(ConfigurationError, match=f"timeout_s is {timeout_s}; expected .* at most 2000000"):
            client("127.0.0.1:1", timeout_s=timeout_s)
