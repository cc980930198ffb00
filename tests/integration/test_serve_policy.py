"""`rollcast serve-policy` in a process of its own: fixed and followed policies, many callers, tokens, signals."""

import dataclasses
import re
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rollcast.services import LearnerClient
from rollcast.services.errors import InvalidTensorError, RefusedError, UnauthenticatedError
from rollcast.services.policies.saved import encode_saved_policy
from rollcast.services.rendezvous import read_rendezvous
from rollcast.services.status.status import Phase
from tests.processes import ended, refused, running, wait_until
from tests.unit.tools.policy_server.test_followed import SAVED, preferring, replace

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "policy_best.safetensors").write_bytes(preferring(0, 5))
    return folder


def served(run: Path, *arguments: object):
    """Starts the command, and returns its process and the address to call."""
    file = run.parent / "server.address"
    process = running("learner", "serve-policy", run, "--address", "localhost:0", "--address-file", file, *arguments)
    return process, f"file:{file}", file


def test_many_callers_get_actions_and_the_last_calls_end_well(run: Path):
    starting, address, file = served(run, "--metrics-address", "localhost:0")
    with starting as process:
        wait_until(file.is_file, "the policy is served")
        with LearnerClient(address) as client:
            described = client.describe()
            assert described.spaces["0"].observation == SAVED.spaces["0"].observation
            one = {"": np.zeros((1, 3), np.float32)}
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: client.act(one, deterministic=True), range(200)))
            assert {(tuple(action), version) for action, version in answers} == {((0,), 5)}
            with pytest.raises(InvalidTensorError, match="expected"):
                client.act({"": np.zeros((1, 2), np.float32)})
            with pytest.raises(RefusedError, match="serves a saved policy"):
                client.pause()
            assert client.get_policy()[0] == 5
            status = client.status()
            assert (status.phase, status.policy_version) == (Phase.FINISHED, 5)
            assert (status.acts.calls, status.acts.observations) == (200, 200)
            assert 1 <= status.acts.forward_passes <= 200
            assert 0 < status.acts.p50_s <= status.acts.p99_s
            with grpc.insecure_channel(read_rendezvous(file).address) as channel:
                checked = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="rollcast.v1.PolicyService")
                )
                assert checked.status == health_pb2.HealthCheckResponse.SERVING
        assert ended(process, signal.SIGTERM) == 0
        told = process.stdout.read()
    assert not file.exists()
    assert re.search(r"serving version 5 of the policy of .*run at localhost:\d+", told)
    assert "metrics for Prometheus at http://localhost:" in told


def test_a_live_run_is_followed_and_metrics_say_so(run: Path):
    starting, address, file = served(
        run, "--follow", "--follow-interval-s", 0.05, "--metrics-address", "localhost:0", "--log-level", "INFO"
    )
    with starting as process:
        where = None
        while where is None:
            where = re.search(r"http://\S+/metrics", process.stdout.readline())
        wait_until(file.is_file, "the policy is served")
        with LearnerClient(address) as client:
            one = {"": np.zeros((1, 3), np.float32)}
            assert client.act(one, deterministic=True)[1] == 5
            assert client.status().phase is Phase.TRAINING
            replace(run, b"half a file")
            replace(run, preferring(1, 9))
            wait_until(lambda: client.status().policy_version == 9, "the newer policy is served")
            action, version = client.act(one, deterministic=True)
            assert (action.tolist(), version) == ([1], 9)
            assert client.get_policy()[0] == 9

        def metrics() -> str:
            with urllib.request.urlopen(where[0]) as answer:
                return answer.read().decode()

        wait_until(lambda: "rollcast_policy_version 9.0" in metrics(), "the metrics have the version")
        assert 'rollcast_act_seconds{quantile="0.99"}' in metrics()
        assert ended(process, signal.SIGINT) == 130


def test_without_a_token_nobody_acts(run: Path, tmp_path: Path):
    tokens = tmp_path / "tokens"
    tokens.write_text("operator:secret-of-the-operator\nviewer:secret-of-the-viewer\n")
    starting, address, file = served(run, "--tokens-file", tokens)
    with starting as process:
        wait_until(file.is_file, "the policy is served")
        with LearnerClient(address) as client, pytest.raises(UnauthenticatedError, match="has no token"):
            client.act({"": np.zeros((1, 3), np.float32)})
        assert ended(process, signal.SIGTERM) == 0


def test_what_cannot_be_served_is_refused_in_words(run: Path, tmp_path: Path):
    own = tmp_path / "own.safetensors"
    spec = dataclasses.replace(SAVED.spec, network="robots:net")
    own.write_bytes(encode_saved_policy(dataclasses.replace(SAVED, spec=spec)))
    assert "was trained with the network 'robots:net'" in refused("serve-policy", own)
    assert "there is no" in refused("serve-policy", tmp_path / "nothing")
    assert "can be reached from other machines" in refused("serve-policy", run, "--address", "0.0.0.0:0")
