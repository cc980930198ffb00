"""Learner and actors with the settings of the built manifests, without a cluster: readiness, liveness, SIGTERM."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rollcast.tools.certificates import make_certificates
from tests.certificates import security_of
from tests.manifests import container, environment_of, overlay, pod
from tests.processes import DEADLINE_S, ROOT, ended, free_port, running, status_of, wait_until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
_IN_IMAGE = "/opt/venv/lib/python3.11/site-packages/"


class Cluster:
    """The containers of an overlay as processes, with ports and folders of this machine in place of a pod's."""

    def __init__(self, name: str, folder: Path) -> None:
        self.documents, self.folder = overlay(name), folder
        self.address = f"localhost:{free_port()}"
        self.heartbeat = folder / "heartbeat"

    def environment(self, component: str) -> dict[str, str]:
        here = {"ROLLCAST_METRICS_ADDRESS": "localhost:0", "ROLLCAST_LOG_LEVEL": "INFO"}
        if component == "learner":
            here |= {"ROLLCAST_ADDRESS": self.address, "ROLLCAST_RUN_DIR": str(self.folder / "run")}
        else:
            here |= {"ROLLCAST_LEARNER_ADDRESS": self.address, "ROLLCAST_HEARTBEAT_FILE": str(self.heartbeat)}
        given = environment_of(self.documents, component)
        return {name: value.replace("/tls/", f"{self.folder}/") for name, value in given.items()} | here

    def grace_s(self, component: str) -> int:
        return pod(self.documents, component)["terminationGracePeriodSeconds"]

    def probe(self, component: str, name: str) -> bool:
        """Returns the answer of an exec probe, as the kubelet asks it: in the container's environment."""
        command = [
            word.replace(_IN_IMAGE, f"{ROOT}/services/").replace("localhost:50051", self.address)
            for word in container(self.documents, component)[name]["exec"]["command"]
        ]
        program = sys.executable if command[0] == "python" else command[0]
        environment = {"PATH": os.defpath} | self.environment(component)
        return (
            subprocess.run([program, *command[1:]], env=environment, check=False, capture_output=True).returncode == 0
        )

    def is_training(self) -> bool:
        certs = self.folder if (self.folder / "ca.pem").exists() else None
        return status_of(self.address, security_of(certs, "viewer")).updates > 0


@pytest.fixture
def cluster(request, tmp_path):
    made = Cluster(request.param, tmp_path)
    if request.param == "tls":
        make_certificates(tmp_path)
    return made


@pytest.mark.parametrize("cluster", ["spot"], indirect=True)
def test_sigterm_ends_learner_and_actor_with_exit_code_0_within_their_grace_periods(cluster):
    learner_does, actor_does = cluster.environment("learner"), cluster.environment("actor")
    with running("learner", "learner", **learner_does) as learner, running("actor", **actor_does) as actor:
        wait_until(cluster.is_training, "training")
        assert ended(actor, signal.SIGTERM, cluster.grace_s("actor")) == 0
        assert ended(learner, signal.SIGTERM, cluster.grace_s("learner")) == 0
    assert list((cluster.folder / "run/checkpoints").iterdir()), "the next pod goes on from here"


@pytest.mark.parametrize("cluster", ["base"], indirect=True)
def test_learner_is_ready_while_it_serves_and_not_while_it_stops(cluster):
    """The kubelet's gRPC probe asks the empty service, as this watches it."""
    assert container(cluster.documents, "learner")["readinessProbe"]["grpc"] == {"port": 50051}
    states: list[int] = []

    def watch(channel: grpc.Channel) -> None:
        # The server ends the watch when it stops.
        with contextlib.suppress(grpc.RpcError):
            call = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=90
            )
            states.extend(response.status for response in call)

    with (
        running("learner", "learner", **cluster.environment("learner")) as learner,
        grpc.insecure_channel(cluster.address) as channel,
    ):
        watching = threading.Thread(target=watch, args=(channel,))
        watching.start()
        wait_until(lambda: SERVING in states or not watching.is_alive(), "readiness")
        assert ended(learner, signal.SIGTERM, cluster.grace_s("learner")) == 0
        watching.join(DEADLINE_S)
        assert states[-1] == NOT_SERVING, "no service sends it anything any more while it drains"
        assert states.count(SERVING) == 1


@pytest.mark.parametrize("cluster", ["tls"], indirect=True)
def test_exec_probes_answer_with_mutual_tls_and_sigterm_ends_both(cluster):
    assert not cluster.probe("learner", "readinessProbe"), "nobody is there yet"
    learner_does, actor_does = cluster.environment("learner"), cluster.environment("actor")
    with running("learner", "learner", **learner_does) as learner, running("actor", **actor_does) as actor:
        wait_until(lambda: cluster.probe("learner", "startupProbe"), "startup", every_s=0.5)
        assert cluster.probe("learner", "readinessProbe")
        assert cluster.probe("learner", "livenessProbe")
        wait_until(cluster.is_training, "training")
        assert ended(actor, signal.SIGTERM, cluster.grace_s("actor")) == 0
        assert ended(learner, signal.SIGTERM, cluster.grace_s("learner")) == 0
        assert not cluster.probe("learner", "readinessProbe")


@pytest.mark.parametrize("cluster", ["base"], indirect=True)
def test_actor_without_a_learner_is_alive_and_ends_within_its_grace_period(cluster):
    assert not cluster.probe("actor", "startupProbe"), "it has not begun"
    with running("actor", **cluster.environment("actor")) as actor:
        wait_until(lambda: cluster.probe("actor", "startupProbe"), "startup", every_s=0.2)
        assert cluster.probe("actor", "livenessProbe")
        assert ended(actor, signal.SIGTERM, cluster.grace_s("actor")) == 0
        two_minutes_ago = time.time() - 120
        os.utime(cluster.heartbeat, (two_minutes_ago, two_minutes_ago))
        assert not cluster.probe("actor", "livenessProbe"), "one that hangs"
