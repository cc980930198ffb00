"""The health probe."""

import signal
import socket
import subprocess
import sys

from rollcast.services.client import health_probe
from rollcast.services.rendezvous import Rendezvous, write_rendezvous
from rollcast.services.server.server import ROLLOUT_SERVICE
from tests.integration.learner_fakes import DEADLINE_S


def test_probe_exits_with_0_only_while_learner_serves(learner):
    # as the images do: without a look at what is installed, gRPC least of all
    command = [sys.executable, "-I", "-S", health_probe.__file__, learner.address]
    done = subprocess.run([*command, ROLLOUT_SERVICE], timeout=30, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    learner.server.drain()
    assert health_probe.probe(learner.address) == (
        f"the server at {learner.address} is NOT_SERVING; expected SERVING; it may be starting or draining"
    )


def test_probe_names_the_reason_if_learner_does_not_serve(learner, capsys):
    assert health_probe.main([learner.address, "no.such.Service"]) == 1
    assert health_probe.main(["127.0.0.1:1"]) == 1
    assert health_probe.main(["nonsense"]) == 1
    assert health_probe.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "no learner answers at 127.0.0.1:1" in lines[1]


def test_probe_finds_the_learner_by_its_file(learner, tmp_path):
    file = tmp_path / "learner.address"
    assert "No such file" in health_probe.probe(f"file:{file}")
    file.write_text("[]")
    assert "has no address" in health_probe.probe(f"file:{file}")
    write_rendezvous(file, Rendezvous(address=learner.address))
    assert health_probe.probe(f"file:{file}") is None


def test_ctrl_c_ends_the_probe_without_a_traceback():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "rollcast.services.client.health_probe", address]
        probe = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()  # the probe waits for an answer
        with connection:
            probe.send_signal(signal.SIGINT)
            _, shown = probe.communicate(timeout=DEADLINE_S)
    assert (probe.returncode, shown) == (130, "")
