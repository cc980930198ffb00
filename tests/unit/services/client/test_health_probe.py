import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollcast.services.client import health_probe
from rollcast.services.rendezvous import Rendezvous, write_rendezvous
from rollcast.services.server.server import ROLLOUT_SERVICE
from tests.integration.learner_fakes import DEADLINE_S, serve


def test_probe_exits_with_0_only_while_learner_serves(learner):
    # as the images do
    command = [sys.executable, "-I", health_probe.__file__, learner.address]
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


@pytest.mark.parametrize("reads", ["address", "ROLLCAST_TLS_CA"])
def test_probe_of_a_file_without_an_end_ends(reads, tmp_path):
    pipe, large, deep = (tmp_path / name for name in ("pipe", "large", "deep"))
    os.mkfifo(pipe)
    large.write_bytes(bytes((1 << 22) + 1))
    deep.write_bytes(100_000 * b"[")
    for file, reason in (
        (pipe, ""),
        (large, "more than 4,194,304 bytes"),
        (Path("/dev/zero"), "more than"),
        (deep, ""),
    ):
        if reads == "address":
            told = health_probe.probe(f"file:{file}")
        else:
            told = health_probe.probe("127.0.0.1:1", environment={reads: str(file)})
        assert "no learner answers at" in told
        assert reason in told


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


def test_probe_imports_grpc_and_nothing_else_of_what_is_installed():
    """Each import costs a container processor time every few seconds."""
    script = (
        "import grpc, runpy, sys; before = set(sys.modules); "
        f"runpy.run_path({health_probe.__file__!r}); "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "\n"


def test_probe_asks_over_a_unix_socket(tmp_path):
    with serve(f"unix:{tmp_path}/socket") as learner:
        assert health_probe.probe(learner.address) is None


def test_probe_says_that_a_server_which_is_none_of_grpc_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert f"no learner answers at {address}" in health_probe.probe(address)
        thread.join(DEADLINE_S)
