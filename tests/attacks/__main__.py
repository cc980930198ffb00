"""Measures what hostile clients cost honest actors: their rate under each attack against the quiet before it.

    python -m tests.attacks [--seconds 10] [--rounds 3] [--only "half-open calls"]

A learner and two actors play CartPole as separate processes, over TCP. Forty hollow actors join with 65536 environments
each, declare a rollout and send none of it; two hundred half-open calls come over five connections; then both at once.
Quiet and attack take turns. While an attack lasts, `GetStatus` and `Check` are asked twice a second, each over a new
connection, and every answer is counted. The attackers run on the same machine, and take its processor, too.
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
from typing import Final

from benchmarks.table import print_table
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.attacks.hostile_clients import attack
from tests.processes import environment, free_port, wait_until

ATTACKS: Final = {
    "hollow actors": ("hollow",),
    "half-open calls": ("half-open",),
    "both": ("hollow", "half-open"),
}
_START_S: Final = 120.0
_ASK_EVERY_S: Final = 0.5


@contextlib.contextmanager
def attackers(address: str, kinds: Sequence[str]) -> Iterator[None]:
    """Attacks from a process of its own, for the body."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=attack, args=(address, kinds, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(_START_S), "the attack did not begin"
        ours.recv()  # EOFError: the attackers have ended with an error
        yield
    finally:
        ours.close()
        process.join(_START_S)
        process.kill()


@contextlib.contextmanager
def learner_with_actors(n_actors: int) -> Iterator[str]:
    """A learner and actors that play for as long as the body likes."""
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def start(*arguments: object) -> None:
            command = [sys.executable, "-m", *map(str, arguments)]
            process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        options = ("--stop-return", 1e9, "--total-steps", 10**9, "--run-dir", os.path.join(folder, "run"))  # noqa: PTH118
        start("rollcast.learner", "learner", "--address", address, "--env-id", "CartPole-v1", *options)
        for _ in range(n_actors):
            start("rollcast.actor", "--learner-address", address, "--env-id", "CartPole-v1")
        with LearnerClient(address) as client:
            wait_until(lambda: is_training(client), "the learner trains", _START_S)
        yield address


def is_training(client: LearnerClient) -> bool:
    """Returns True once there were updates."""
    try:
        return client.status().updates > 0
    except RollcastError:
        return False


def measure(address: str, seconds: float) -> tuple[float, int, int]:
    """Environment steps a second; how often was asked, and how often answered."""
    n_asked = n_answered = 0
    with LearnerClient(address) as steady:
        steps, began = steady.status().env_steps, time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            for ask in (LearnerClient.status, LearnerClient.is_serving):
                n_asked += 1
                with contextlib.suppress(RollcastError), LearnerClient(address) as client:
                    n_answered += bool(ask(client))
            time.sleep(max(0.0, _ASK_EVERY_S - (time.perf_counter() - now)))
        steps = steady.status().env_steps - steps
        return steps / (time.perf_counter() - began), n_asked, n_answered


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median is printed")
    parser.add_argument("--n-actors", type=int, default=2, help="honest actors")
    parser.add_argument("--only", choices=tuple(ATTACKS), help="one of the attacks")
    options = parser.parse_args()
    rows = []
    with learner_with_actors(options.n_actors) as address:
        for name, kinds in ATTACKS.items():
            if options.only not in (None, name):
                continue
            rounds = []
            for _ in range(options.rounds):
                before, _, _ = measure(address, options.seconds)
                with attackers(address, kinds):
                    during, n_asked, n_answered = measure(address, options.seconds)
                rounds.append((before, during, during / before, n_asked, n_answered))
            before, during, ratio = (statistics.median(column) for column in list(zip(*rounds, strict=True))[:3])
            asked, answered = (sum(column) for column in list(zip(*rounds, strict=True))[3:])
            rows.append((name, f"{before:,.0f}", f"{during:,.0f}", f"{ratio:.0%}", f"{answered} of {asked}"))
    print_table(("attack", "steps/s before", "steps/s during", "ratio", "answers"), rows)


if __name__ == "__main__":
    main()
