"""Measures the cost of watching a run: of actors that report their time, and of clients that watch the learner.

    python -m benchmarks.watching [--seconds 2] [--rounds 15]

The cost for an actor is its rate with reports once a second beside that without, in environment steps per second of its
processor time; the cost for a learner is its rate with one and with four clients beside that with none, in updates per
second of its processor time. Processor time, because other work on the machine changes it least. Those that are
compared take turns.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.table import Figure, print_table, ratio
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.rollouts.rollouts import Rollout

_ROOT = Path(__file__).resolve().parent.parent
_START_TIMEOUT_S = 120.0
_TARGET = "at least 0.99"
_N_ANSWERS = 20


class _Nowhere:
    """Takes every rollout and keeps none: a learner that is faster than any actor."""

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """Takes a rollout."""
        del rollout, is_active, n_reserved
        return True

    def reserve(self, n_trajectories: int) -> bool:
        """Has room."""
        del n_trajectories
        return True

    def release(self, n_trajectories: int) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def serve(address: str, remembers: bool, out: Connection) -> None:
    """Serves actors whose rollouts go nowhere, until it is killed; with a run history it asks them for their time."""
    from rollcast.actor.environments.make import EnvironmentFactory
    from rollcast.actor.policies.trainable import TorchPolicy
    from rollcast.actor.vector.make import probe_spaces
    from rollcast.learner.actors.remote import RemoteDistributedActors
    from rollcast.learner.actors.serving_options import ServingOptions
    from rollcast.learner.history.run_history import RunHistory
    from rollcast.services.policies.policies import PolicySpec

    policy = TorchPolicy(probe_spaces(EnvironmentFactory("CartPole-v1", vectorization="entry_point")), PolicySpec())
    serving = ServingOptions(
        addresses=(address,), destination=_Nowhere(), run_history=RunHistory() if remembers else None
    )
    with RemoteDistributedActors(policy, 64, 128, 1.0, envs_per_actor=64, seed=0, serving=serving):
        out.send_bytes(b"ready")
        signal.pause()


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process and all its threads, in seconds."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def env_steps(client: LearnerClient) -> int:
    """Returns the steps of the learner's only actor."""
    return sum(info.env_steps for info in client.actors())


@contextlib.contextmanager
def acting(folder: str, *, remembers: bool) -> Iterator[tuple[int, LearnerClient]]:
    """Runs a learner and its actor; yields the actor's process and a client of the learner."""
    address = f"unix:{folder}/{remembers}"
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    learner = multiprocessing.get_context("spawn").Process(target=serve, args=(address, remembers, sender))
    learner.start()
    assert receiver.poll(_START_TIMEOUT_S), "the learner does not start"
    command = [sys.executable, "-m", "rollcast.actor", "--learner-address", address, "--env-id", "CartPole-v1"]
    actor = subprocess.Popen([*command, "--envs-per-actor", "64", "--torch-threads", "1"], cwd=_ROOT)
    try:
        with LearnerClient(address) as client:
            _until(lambda: env_steps(client) > 100_000, "the actor's steps")
            yield actor.pid, client
    finally:
        for pid in (actor.pid, learner.pid):
            os.kill(pid, signal.SIGKILL)
        actor.wait(10)
        learner.join(10)


def measure_actors(seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Returns the rates of an actor that reports and of one that does not, in steps per second of processor time."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        both = [stack.enter_context(acting(folder, remembers=remembers)) for remembers in (True, False)]
        for pid, _ in both:
            os.kill(pid, signal.SIGSTOP)
        rates = []
        for i in range(rounds):
            turn = {}
            # first one begins, then the other
            for which in (0, 1) if i % 2 else (1, 0):
                pid, client = both[which]
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.2)
                steps, cpu = env_steps(client), cpu_s(pid)
                time.sleep(seconds)
                turn[which] = (env_steps(client) - steps) / (cpu_s(pid) - cpu)
                os.kill(pid, signal.SIGSTOP)
            rates.append((turn[0], turn[1]))
        return rates


def watch(address: str, n_clients: int, out: Connection) -> None:
    """Watches a learner with several clients, until it is killed."""
    clients = [LearnerClient(address) for _ in range(n_clients)]
    watches = [client.watch_history(1.0) for client in clients]
    for updates in watches:
        next(updates)
    out.send_bytes(b"ready")
    while True:
        for updates in watches:
            next(updates)


def measure_learner(seconds: float, rounds: int) -> list[tuple[float, float, float]]:
    """Returns the rates of a learner with no, one and four clients, in updates per second of its processor time."""
    options = ("--n-actors", "2", "--envs-per-actor", "64", "--n-rollout-steps", "64", "--batch-size", "128")
    options += ("--torch-threads", "1", "--stop-return", "1e9", "--total-steps", "1000000000", "--algorithm", "impala")
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/learner"
        command = [sys.executable, "-m", "rollcast.learner", "train", *options, "--run-dir", f"{folder}/run"]
        process = subprocess.Popen([*command, "--address", address], cwd=_ROOT, stdout=subprocess.DEVNULL)
        try:
            with LearnerClient(address) as client:
                _until(lambda: client.status().updates > 100, "updates")
                rates = []
                for i in range(rounds):
                    turn = {}
                    for n_clients in (0, 1, 4) if i % 2 else (4, 1, 0):
                        with _watching(address, n_clients):
                            updates, cpu = client.status().updates, cpu_s(process.pid)
                            time.sleep(seconds)
                            turn[n_clients] = (client.status().updates - updates) / (cpu_s(process.pid) - cpu)
                    rates.append((turn[0], turn[1], turn[4]))
                return rates
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextlib.contextmanager
def _watching(address: str, n_clients: int) -> Iterator[None]:
    if not n_clients:
        yield
        return
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=watch, args=(address, n_clients, sender))
    process.start()
    try:
        assert receiver.poll(_START_TIMEOUT_S), "the clients do not start"
        yield
    finally:
        process.kill()
        process.join(10)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        # The learner starts: it is asked again.
        with contextlib.suppress(RollcastError):
            if condition():
                return
        time.sleep(0.05)
    raise TimeoutError(f"not within {_START_TIMEOUT_S:.0f} s: {what}")


def measure_answers(n_actors: int) -> tuple[float, float]:
    """Returns the processor time of one answer with one second of news of so many actors, and of the first answer."""
    from rollcast.learner.history.run_history import RunHistory
    from rollcast.learner.training.control import TrainingControl
    from rollcast.services.history.codec import update_to_protos
    from rollcast.services.joining.activity import ActingState, ActorActivity

    control = TrainingControl(algorithm="impala", run_dir=None)
    now = 0.0
    control.run_history = run_history = RunHistory(clock=lambda: now)
    for i in range(n_actors):
        run_history.connected(f"actor-{i}", lambda: None)
    took = []
    after = None
    for second in range(400):
        now = float(second)
        for i in range(n_actors):
            seconds = (0.0, now, 0.0, 0.0, 0.0, 0.0)
            run_history.acted(f"actor-{i}", ActorActivity(state=ActingState.ACTING, seconds=seconds))
        control.sample()
        if second >= 400 - _N_ANSWERS:
            began = time.process_time()
            update = control.history(after)
            after = update.now_s
            for message in update_to_protos(update):
                message.SerializeToString()
            took.append(time.process_time() - began)
    return statistics.median(took[1:]), took[0]


def measure_report(n_reports: int = 5000) -> tuple[float, float]:
    """Returns the processor time of a report, in seconds: where it is made, and where it is taken."""
    from rollcast.actor.acting.actor_metrics import ActorMetrics
    from rollcast.learner.history.run_history import RunHistory
    from rollcast.services.joining.activity_codec import activity_from_proto, activity_to_proto
    from rollcast.services.streams.receiver import parse_request
    from rollcast.services.wire.seal import seal
    from rollcast.v1 import rollout_pb2

    metrics = ActorMetrics()
    began = time.process_time()
    messages = [
        seal(rollout_pb2.StreamRolloutsRequest(activity=activity_to_proto(metrics.activity())).SerializeToString())
        for _ in range(n_reports)
    ]
    made_s = time.process_time() - began
    run_history = RunHistory()
    run_history.connected("a", lambda: None)
    began = time.process_time()
    for message in messages:
        activity = activity_from_proto(parse_request(message).request.activity, actor_id="a")
        assert activity is not None
        run_history.acted("a", activity)
    return made_s / n_reports, (time.process_time() - began) / n_reports


def _time(seconds: float, unit: str) -> Figure:
    return Figure([seconds], ".3g", unit, scale={"ms": 1e3, "us": 1e6}[unit])


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=15, help="rounds; medians are printed")
    options = parser.parse_args()
    actors = list(zip(*measure_actors(options.seconds, options.rounds), strict=True))
    learner = list(zip(*measure_learner(options.seconds, options.rounds), strict=True))
    rows = []
    for name, unit, with_it, without in (
        ("actor that reports its time every second", "env steps", actors[0], actors[1]),
        ("learner with one client that watches", "updates", learner[1], learner[0]),
        ("learner with four clients", "updates", learner[2], learner[0]),
    ):
        rows.append(
            (name, Figure(with_it, unit=unit), Figure(without, unit=unit), ratio(with_it, without, ".3f"), _TARGET)
        )
    for n_actors in (2, 200, 1000):
        each, first = measure_answers(n_actors)
        rows.append((f"one answer, {n_actors} actors; beside the first", _time(each, "ms"), _time(first, "ms"), "", ""))
    made_s, taken_s = measure_report()
    rows.append(
        ("making a report of an actor's time; beside taking it", _time(made_s, "us"), _time(taken_s, "us"), "", "")
    )
    print_table(("what", "a second of processor time", "without", "ratio", "target"), rows)


if __name__ == "__main__":
    main()
