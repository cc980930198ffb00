"""Measures what hostile clients cost honest actors and the learner: rates and memory under attack and before it.

    make attacks, or python -m tests.attacks [--seconds 10] [--rounds 3] [--only "half-open calls"]
    make attacks ARGS='--only walks --walk "relay: metrics: flood"'

A learner and two actors play CartPole as separate processes, over TCP. Forty hollow actors join with 65536 environments
each, declare a rollout and send none of it; two hundred half-open calls come over five connections; then both at once;
then one call of a relay opens streams of actors that never joined.
Quiet and attack take turns. While an attack lasts, `GetStatus` and `Check` are asked twice a second, each over a new
connection, and every answer is counted.

Then come the walks (`tests.attacks.walks`): every field of every RPC, and every socket, of every command that listens.

Attackers, learner and actors share the cores of this machine, so the rate says as much about the machine as about the
learner. Two columns take this apart. `attackers' CPU` is the share of all cores that the attackers use themselves; on a
machine of their own it would cost nothing. `steps per CPU s` is the work that a CPU second of learner and actors does
under attack, against the quiet: the rest of it is what the learner does for attackers.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.table import print_table
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.attacks.hostile_clients import attack
from tests.attacks.walks import print_walks
from tests.processes import environment, free_port, wait_until

ATTACKS: Final = {
    "hollow actors": ("hollow",),
    "half-open calls": ("half-open",),
    "both": ("hollow", "half-open"),
    "one relay's call": ("relay",),
}
WALKS: Final = "walks"
_START_S: Final = 120.0
_ASK_EVERY_S: Final = 0.5


@contextlib.contextmanager
def attackers(address: str, kinds: Sequence[str]) -> Iterator[psutil.Process]:
    """Attacks from a process of its own, for the body."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=attack, args=(address, kinds, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(_START_S), "the attack did not begin"
        ours.recv()  # EOFError: the attackers have ended with an error
        yield psutil.Process(process.pid)
    finally:
        ours.close()
        process.join(_START_S)
        process.kill()


@contextlib.contextmanager
def learner_with_actors(n_actors: int) -> Iterator[tuple[str, list[psutil.Process]]]:
    """A learner and actors that play for as long as the body likes: the address, and the processes."""
    processes = []
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def start(*arguments: object) -> None:
            command = [sys.executable, "-m", *map(str, arguments)]
            process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            processes.append(psutil.Process(process.pid))
            stack.callback(process.wait)
            stack.callback(process.terminate)

        options = ("--stop-return", 1e9, "--total-steps", 10**9, "--run-dir", os.path.join(folder, "run"))  # noqa: PTH118
        start("rollcast.learner", "learner", "--address", address, "--env-id", "CartPole-v1", *options)
        for _ in range(n_actors):
            start("rollcast.actor", "--learner-address", address, "--env-id", "CartPole-v1")
        with LearnerClient(address) as client:
            wait_until(lambda: is_training(client), "the learner trains", _START_S)
        yield address, processes


def is_training(client: LearnerClient) -> bool:
    """Returns True once there were updates."""
    try:
        return client.status().updates > 0
    except RollcastError:
        return False


@dataclass(frozen=True)
class Measurement:
    """The counts of one measurement."""

    seconds: float
    n_steps: int
    honest_cpu_s: float
    attackers_cpu_s: float
    learner_bytes: int
    n_asked: int
    n_answered: int

    @property
    def rate(self) -> float:
        """Environment steps a second."""
        return self.n_steps / self.seconds

    @property
    def steps_per_cpu_s(self) -> float:
        """Environment steps for a CPU second of learner and actors."""
        return self.n_steps / self.honest_cpu_s

    @property
    def attackers_share(self) -> float:
        """The part of all cores that the attackers took."""
        return self.attackers_cpu_s / (self.seconds * len(os.sched_getaffinity(0)))


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Returns the CPU time that processes have taken, in seconds."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def measure(
    address: str, honest: Sequence[psutil.Process], attacking: Sequence[psutil.Process], seconds: float
) -> Measurement:
    """Counts steps, CPU time and answers for so many seconds."""
    n_asked = n_answered = 0
    with LearnerClient(address) as steady:
        honest_s, attackers_s = cpu_seconds(honest), cpu_seconds(attacking)
        steps, began = steady.status().env_steps, time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            for ask in (LearnerClient.status, LearnerClient.is_serving):
                n_asked += 1
                with contextlib.suppress(RollcastError), LearnerClient(address) as client:
                    n_answered += bool(ask(client))
            time.sleep(max(0.0, _ASK_EVERY_S - (time.perf_counter() - now)))
        return Measurement(
            seconds=time.perf_counter() - began,
            n_steps=steady.status().env_steps - steps,
            honest_cpu_s=cpu_seconds(honest) - honest_s,
            attackers_cpu_s=cpu_seconds(attacking) - attackers_s,
            learner_bytes=honest[0].memory_info().rss,
            n_asked=n_asked,
            n_answered=n_answered,
        )


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median is printed")
    parser.add_argument("--n-actors", type=int, default=2, help="honest actors")
    parser.add_argument("--only", choices=(*ATTACKS, WALKS), help="one of the attacks, or the walks")
    parser.add_argument("--walk", default="", help="part of the names of what is walked over, as in the first columns")
    options = parser.parse_args()
    if options.only != WALKS:
        print_rates(options)
    if options.only in (None, WALKS):
        sys.exit(not print_walks(options.seconds, only=options.walk))


def print_rates(options: argparse.Namespace) -> None:
    """Measures the attacks of whole clients, and prints the table."""
    rows = []
    with learner_with_actors(options.n_actors) as (address, honest):
        for name, kinds in ATTACKS.items():
            if options.only not in (None, name):
                continue
            rounds = []
            for _ in range(options.rounds):
                before = measure(address, honest, (), options.seconds)
                with attackers(address, kinds) as attacking:
                    rounds.append((before, measure(address, honest, (attacking,), options.seconds)))
            rows.append((name, *summary(rounds)))
    print_table(
        (
            *("attack", "steps/s before", "during", "ratio", "attackers' CPU", "steps per CPU s"),
            *("learner's memory before", "most during", "answers"),
        ),
        rows,
    )


def summary(rounds: Sequence[tuple[Measurement, Measurement]]) -> tuple[str, ...]:
    """Returns a row of the table: medians over rounds of quiet and attack."""
    rates, rates_during, ratios, shares, costs = map(
        statistics.median,
        zip(
            *(
                (
                    before.rate,
                    during.rate,
                    during.rate / before.rate,
                    during.attackers_share,
                    during.steps_per_cpu_s / before.steps_per_cpu_s,
                )
                for before, during in rounds
            ),
            strict=True,
        ),
    )
    answered, asked = (sum(getattr(during, name) for _, during in rounds) for name in ("n_answered", "n_asked"))
    percent = (f"{share:.0%}" for share in (ratios, shares, costs))
    # of the first round: what an attack leaves behind is in the quiet after it
    memory = (rounds[0][0].learner_bytes, max(during.learner_bytes for _, during in rounds))
    mib = (f"{n_bytes / 2**20:.0f} MiB" for n_bytes in memory)
    return f"{rates:,.0f}", f"{rates_during:,.0f}", *percent, *mib, f"{answered} of {asked}"


if __name__ == "__main__":
    main()
