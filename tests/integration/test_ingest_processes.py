"""A learner's ingest processes, killed and frozen in the middle of training."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import NotReadyError, RollcastError
from rollcast.services.limits.limits import Limits
from rollcast.services.process.socket_paths import short_temporary_paths
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.tools.certificates import make_certificates
from rollcast.tools.relay import ingest
from rollcast.tools.relay.ingest import IngestPlan, IngestProcesses
from tests.chaos.acting import read_acknowledgements
from tests.chaos.learners import QueueLearner
from tests.chaos.processes import SupervisedActor
from tests.integration.learner_fakes import offer
from tests.processes import DEADLINE_S, ended, is_alive, running, status_of, wait_until

pytestmark = pytest.mark.slow


def ingest_of(learner_pid: int) -> set[int]:
    """Returns the ingest processes of a learner."""
    found = set()
    for child in psutil.Process(learner_pid).children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            found |= {child.pid} if any("spawn_main" in word for word in child.cmdline()) else set()
    return found


def learner(address: str, run_dir: Path, *options: object) -> tuple[object, ...]:
    return (
        *("learner", "learner", "--address", "127.0.0.1:0", "--address-file", address.removeprefix("file:")),
        *("--run-dir", run_dir, "--ingest-processes", 2, "--batch-size", 8),
        # leaves the cores to others
        *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.0005}'),
        *("--n-rollout-steps", 16, "--torch-threads", 1, "--stop-return", 1e9, "--total-steps", 10**9, *options),
    )


def actor(address: str, name: str, *options: object) -> tuple[object, ...]:
    return ("actor", "--learner-address", address, "--envs-per-actor", 8, "--actor-id", name, *options)


class JumpingClock:
    """A clock that jumps as if the process had been paused, and counts how often it is read."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.n_reads = 0
        self._jumps_before = 0

    def monotonic(self) -> float:
        self.n_reads += 1
        if self.n_reads == self._jumps_before:
            self.ahead_s += 100.0
        return time.monotonic() + self.ahead_s

    def jump_within(self, n_reads: int) -> None:
        """Jumps so many reads from now, and returns after one more look at the processes at least."""
        self._jumps_before = self.n_reads + n_reads
        wait_until(lambda: self.n_reads > self._jumps_before + 8, "looks after a pause of all processes")


@contextlib.contextmanager
def client_of(address: str, security: ClientSecurity = PLAIN_CLIENT) -> Iterator[LearnerClient]:
    wait_until(Path(address.removeprefix("file:")).exists, "the learner to serve")
    with LearnerClient(address, security=security) as client:
        yield client


def ways(client: LearnerClient) -> dict[str, tuple[str, ...]]:
    return {info.actor_id: info.via for info in client.actors() if info.rollouts}


def plan_of(number: int, learner_address: str) -> IngestPlan:
    return IngestPlan(
        name=f"ingest-{number}",
        address="127.0.0.1:0",
        learner_address=learner_address,
        security={},
        limits=Limits(),
        log_level="INFO",
    )


def test_killed_and_frozen_processes_lose_nothing_and_repeat_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with contextlib.ExitStack() as stack:
        with short_temporary_paths():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollcast-"))
        address = f"unix:{folder}/learner.sock"
        plans = [plan_of(number, address) for number in (1, 2)]
        clock = JumpingClock()
        monkeypatch.setattr(ingest, "time", clock)
        processes = IngestProcesses(plans)
        stack.callback(processes.close)
        processes.start()
        processes.wait_until_served()
        serving = stack.enter_context(QueueLearner(7, local_address=address, assignment=processes))
        own = f"127.0.0.1:{serving.port}"
        actors = []
        for i in range(4):
            actors.append(SupervisedActor(f"chaos-{i}", own, tmp_path))
            stack.callback(actors[-1].close)

        def all_go_on(what: str) -> None:
            before = {one.actor_id: serving.ledger.count(one.actor_id) for one in actors}
            wait_until(lambda: all(serving.ledger.count(name) > n + 6 for name, n in before.items()), what)

        all_go_on("all actors to be heard")
        infos = {info.actor_id: info for info in serving.actors.actor_infos}
        assert sorted(infos[one.actor_id].via for one in actors) == [("ingest-1",)] * 2 + [("ingest-2",)] * 2
        refusals, start = [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))], BaseProcess.start

        def start_or_refuse(process: BaseProcess) -> None:
            if refusals:
                raise refusals.pop()
            start(process)

        monkeypatch.setattr(BaseProcess, "start", start_or_refuse)
        # Both at last: then no other takes their actors.
        for number, which in ((signal.SIGKILL, slice(0, 1)), (signal.SIGSTOP, slice(1, 2)), (signal.SIGKILL, slice(2))):
            hit = set(processes.pids[which])
            for pid in hit:
                os.kill(pid, number)
            wait_until(lambda hit=hit: not hit & set(processes.pids), f"processes {hit} to be given up")
            all_go_on(f"all actors to go on after {number!r} for {hit}")
            wait_until(lambda: len(processes.pids) == 2, "another in its place")
            processes.wait_until_served()
        paused = set(processes.pids)
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        for n_reads in range(1, 11):  # at any place of a look
            clock.jump_within(n_reads)
        for pid in paused:
            os.kill(pid, signal.SIGCONT)
        all_go_on("all actors to go on after the pause")
        assert set(processes.pids) == paused
        assert caplog.text.count("Resource temporarily unavailable); restarting it") == 1
        for one in actors:
            assert one.close(), one.log.read_text()
        acknowledged = {one.actor_id: read_acknowledgements(one.acknowledgements) for one in actors}
        assert [one.n_starts for one in actors] == [1] * 4, "the same processes all along"
        stack.pop_all().close()
    serving.check_whole(acknowledged, more_than=24)


def test_a_process_that_starts_again_gets_its_share_of_actors_which_wait_for_it_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    clock, may_start, start = JumpingClock(), threading.Event(), BaseProcess.start

    def start_or_refuse(process: BaseProcess) -> None:
        if not may_start.is_set():
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        start(process)

    with contextlib.ExitStack() as stack:
        with short_temporary_paths():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollcast-"))
        address = f"unix:{folder}/learner.sock"
        monkeypatch.setattr(ingest, "time", clock)
        processes = IngestProcesses([plan_of(number, address) for number in (1, 2)])
        stack.callback(processes.close)
        processes.start()
        processes.wait_until_served()
        stack.enter_context(QueueLearner(7, local_address=address, assignment=processes))

        def sent_to() -> str | None:
            with contextlib.suppress(NotReadyError):
                return processes.elsewhere(offer(), 0)
            return None

        wait_until(sent_to, "both processes to serve")
        monkeypatch.setattr(BaseProcess, "start", start_or_refuse)
        killed = processes.pids[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in processes.pids, "the killed process to be given up")
        assert sent_to() is None
        clock.ahead_s += 11.0
        wait_until(sent_to, "the other to take actors")
        left = sent_to()
        may_start.set()
        wait_until(lambda: len(processes.pids) == 2, "another in its place")
        wait_until(lambda: sent_to() not in (None, left), "the new process to get an actor")


def test_training_in_rounds_goes_on_without_a_killed_process_and_ends_everywhere(tmp_path: Path):
    """With the learner's certificate and tokens, which its processes have, too."""
    own, certs = f"file:{tmp_path}/address", tmp_path / "certs"
    make_certificates(certs)
    served = ("--tls-cert", certs / "server.pem", "--tls-key", certs / "server.key", "--tokens-file", certs / "tokens")
    acting = ("--tls-ca", certs / "ca.pem", "--token-file", certs / "actor.token")
    operator = ClientSecurity(tls_ca=certs / "ca.pem", token_file=certs / "operator.token")
    options = ("--algorithm", "ppo", "--ppo.n-epochs", 1, *served)
    with (
        running(*learner(own, tmp_path / "run", *options)) as training,
        running(*actor(own, "a", *acting)) as one,
        running(*actor(own, "b", *acting)) as other,
        client_of(own, operator) as client,
    ):
        wait_until(lambda: status_of(client).updates > 20 and len(ways(client)) == 2, "training")
        assert sorted(ways(client).values()) == [("ingest-1",), ("ingest-2",)]
        before = ingest_of(training.pid)
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: len(ingest_of(training.pid) - before) == 1, "a process in its place")
        updates = client.status().updates
        wait_until(lambda: status_of(client).updates > updates + 20, "training to go on")
        assert all(ways(client).values())
        told = next(iter(client.watch_history())).events
        assert [event.text for event in told if event.who.startswith("ingest-")] == [
            "ingest process ended: signal 9; it is started again"
        ]
        client.stop()
        for process in (training, one, other):
            assert ended(process) == 0, process.stdout.read()
        assert "restarting it" in training.stdout.read()


def test_the_processes_of_a_killed_durable_learner_end_and_the_next_one_goes_on(tmp_path: Path):
    own, run = f"file:{tmp_path}/address", tmp_path / "run"
    options = ("--algorithm", "impala", "--durable", "--resume", "auto")
    with running(*actor(own, "a")) as acting:
        with running(*learner(own, run, *options)) as first, client_of(own) as client:
            wait_until(lambda: status_of(client).updates > 20, "the first learner to train")
            orphans = ingest_of(first.pid)
            assert len(orphans) == 2
            first.send_signal(signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, orphans)), "its processes to end by themselves")
        (tmp_path / "address").unlink()
        with running(*learner(own, run, *options)), client_of(own) as client:
            wait_until(lambda: status_of(client).updates > 20, "the second learner to train")
            wait_until(lambda: ways(client), "the actor to be back")
            (info,) = client.actors()
            assert (info.incarnation, len(info.via)) == (1, 1)
            assert client.status().rejected_rollouts == 0
            assert acting.poll() is None


def test_a_port_that_another_process_has_is_refused_before_anything_is_made(tmp_path: Path, refused_here):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        before = taken.getsockname()[1] - 1
        options = ("--address", f"127.0.0.1:{before}", "--ingest-processes", 1, "--run-dir", tmp_path / "run")
        assert f"'127.0.0.1:{before + 1}' is in use" in refused_here("learner", *options, code=1)[1]
        metrics = ("--metrics-address", f"127.0.0.1:{before + 1}")
        told = f"--metrics-address: '127.0.0.1:{before + 1}' is the address of ingest process 1"
        assert told in refused_here("learner", *options, *metrics)[1]
    assert not (tmp_path / "run").exists()


def test_those_that_do_not_serve_in_time_are_named_unless_they_are_closed(monkeypatch: pytest.MonkeyPatch):
    class Hurrying(JumpingClock):
        def monotonic(self) -> float:
            self.ahead_s += 50.0
            return super().monotonic()

    monkeypatch.setattr(ingest, "time", Hurrying())
    processes = IngestProcesses([plan_of(number, "unix:/nowhere") for number in (1, 2)])
    with pytest.raises(RollcastError, match=r"^not serving after 60 s: ingest-1, ingest-2; expected a few seconds"):
        processes.wait_until_served()
    processes.close()
    assert processes.wait_until_served() == ()


# The first wait of `close` is for a thread.
INTERRUPTED = """
import os, signal, sys, threading
from rollcast.services.limits.limits import Limits
from rollcast.tools.relay.ingest import IngestPlan, IngestProcesses

own = {"name": "ingest-1", "address": "127.0.0.1:0", "learner_address": sys.argv[1]}
processes = IngestProcesses([IngestPlan(**own, security={}, limits=Limits(), log_level="INFO")])
processes.start()
processes.wait_until_served()
(pid,) = processes.pids
print(pid, flush=True)
os.kill(pid, signal.SIGSTOP)
join = threading.Thread.join

def interrupt(*_arguments):
    threading.Thread.join = join
    raise KeyboardInterrupt

threading.Thread.join = interrupt
processes.close()
"""


def test_an_interrupt_while_they_are_ended_leaves_none_and_ends_the_learner(tmp_path: Path):
    """Also one that is frozen, which neither SIGTERM nor the end of its pipe would end."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, f"unix:{tmp_path}/learner.sock"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        pid = int(process.stdout.readline())
        try:
            assert "KeyboardInterrupt" in process.communicate(timeout=DEADLINE_S)[1]
            assert not is_alive(pid)
        finally:
            for left in (process.pid, pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)
