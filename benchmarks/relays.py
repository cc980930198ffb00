"""Measures the learner's processor time for each rollout with many actors: connected directly, and through relays.

    python -m benchmarks.relays [--direct 256] [--actors 1000] [--relays 4] [--seconds 10] [--rounds 3]
    python -m benchmarks.relays --direct 64 --actors 64 --relays 0 --ingest-processes 1 [--envs 1]

Learner and actors are those of `benchmarks.actors`: `rollcast learner` in a process of its own, and synthetic actors
that send rollouts of 32 steps of one environment as fast as their credits allow. Between them stand `rollcast relay`
processes, each with its share of the actors. Each round measures some actors directly, then many through the
relays, and as many with a learner that has ingest processes, each time with a learner of its own. The cost is that of
all threads of the learner's process but the trainer's. All of it shares the cores of this machine, so the rollouts a
second say little.
"""

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.actors import (
    OTHERS,
    POLICIES,
    ROLLOUTS,
    TRAINER,
    acting,
    learner,
    name_threads,
    rollouts_of,
    thread_times,
    until_all_play,
)
from benchmarks.table import Figure, print_table
from rollcast.services.client.client import LearnerClient

_ROOT = Path(__file__).resolve().parent.parent


class Use(NamedTuple):
    """The processor time, threads and memory of processes in a measurement.

    Attributes:
        cpu_s: Processor seconds, by what the threads of a learner do; see `benchmarks.actors`.
        n_threads: Threads at the end.
        resident_mib: Resident memory at the end.
    """

    cpu_s: Counter[str]
    n_threads: int
    resident_mib: float


class Measured(NamedTuple):
    """A measurement.

    Attributes:
        rollouts: The rollouts that the learner took.
        seconds: The seconds that it took them in.
        learner: What the learner used.
        relays: What all relays used together.
    """

    rollouts: int
    seconds: float
    learner: Use
    relays: Use

    @property
    def ms_a_rollout(self) -> float:
        """The learner's processor time for a rollout but for the trainer's, in milliseconds."""
        return 1e3 * (self.learner.cpu_s.total() - self.learner.cpu_s[TRAINER]) / self.rollouts


@contextlib.contextmanager
def relaying(address: str, n_relays: int, n_actors: int, wait_s: float) -> Iterator[tuple[list[int], list[str]]]:
    """Runs relays; yields their process ids, and their addresses."""
    processes, addresses = [], []
    for i in range(n_relays):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{free.getsockname()[1]}")
        command = ["--learner-address", address, "--address", addresses[-1], "--relay-id", f"relay-{i}"]
        command += [
            "--bundle-wait-s",
            str(wait_s),
            "--max-actors",
            str(n_actors),
            "--connect-timeout-s",
            "600",
            "--log-level",
            "WARNING",
        ]
        command += ["--limits.calls-per-second-per-host", "100000", "--limits.calls-per-second", "100000"]
        processes.append(subprocess.Popen([sys.executable, "-m", "rollcast.learner", "relay", *command], cwd=_ROOT))
    try:
        yield [process.pid for process in processes], addresses
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def used(pids: Sequence[int]) -> Use:
    """Returns what processes have used so far."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return Use(
        cpu_s=sum((thread_times(pid) for pid in pids), Counter()),
        n_threads=sum(int(text.split("Threads:")[1].split()[0]) for text in texts),
        resident_mib=sum(int(text.split("VmRSS:")[1].split()[0]) for text in texts) / 1024,
    )


def measure(n_actors: int, n_relays: int, n_ingest: int, options: argparse.Namespace) -> Measured:
    """Measures a learner with so many actors, behind so many relays, or with so many ingest processes; 0: none."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        own = [*options.learner_options, "--ingest-processes", str(n_ingest)]
        process, address = stack.enter_context(learner(folder, n_actors, own))
        pids, addresses = stack.enter_context(relaying(address, n_relays, n_actors, options.bundle_wait_s))
        share = -(-n_actors // max(1, n_relays))
        for i, dialled in enumerate(addresses or [address]):
            n_here = min(share, n_actors - i * share)
            of_actors = ("--play-s", str(options.play_s), "--envs", str(options.envs))
            stack.enter_context(acting(dialled, n_here, of_actors, first=i * share))
        client = stack.enter_context(LearnerClient(address, timeout_s=60.0))
        until_all_play(client, n_actors)
        if n_ingest:
            children = psutil.Process(process.pid).children()
            pids = [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
        name_threads(process)
        rollouts, began = rollouts_of(client), time.perf_counter()
        before = used([process.pid]), used(pids)
        time.sleep(options.seconds)
        rollouts, ended = rollouts_of(client) - rollouts, time.perf_counter()
        after = used([process.pid]), used(pids)
        spent = [now._replace(cpu_s=now.cpu_s - then.cpu_s) for then, now in zip(before, after, strict=True)]
        return Measured(rollouts, ended - began, *spent)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=1000, help="actors behind relays")
    parser.add_argument("--direct", type=int, default=256, help="actors that are connected directly; 0: not measured")
    parser.add_argument("--relays", type=int, default=4, help="relays that they share; 0: not measured")
    parser.add_argument("--ingest-processes", type=int, default=0, help="the learner's option; 0: not measured")
    parser.add_argument("--envs", type=int, default=1, help="environments of an actor")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are printed")
    parser.add_argument("--play-s", type=float, default=0.0, help="seconds that an actor plays; 0: as fast as it may")
    parser.add_argument("--bundle-wait-s", type=float, default=0.02, help="the relays' option of this name")
    parser.add_argument("learner_options", nargs="*", help="more options of the learner, after --")
    options = parser.parse_args()
    cases = [(options.direct, 0, 0)]
    cases += [(options.actors, options.relays, 0)] if options.relays else []
    cases += [(options.actors, 0, options.ingest_processes)] if options.ingest_processes else []
    found: dict[tuple[int, int, int], list[Measured]] = {case: [] for case in cases if case[0]}
    for _ in range(options.rounds):
        for case, measured in found.items():
            measured.append(measure(*case, options))
    rows = []
    for (n_actors, n_relays, n_ingest), measured in found.items():
        n_between = max(1, n_relays + n_ingest)
        between = f"through {n_relays} relays" if n_relays else f"with {n_ingest} ingest processes"

        def middle(values: Iterator[float], digits: int = 0) -> Figure:
            return Figure(list(values), f",.{digits}f")

        rows.append(
            (
                f"{n_actors:,} {between if n_relays + n_ingest else 'directly'}",
                Figure([one.ms_a_rollout for one in measured], ".2f", has_range=True),
                *(
                    middle((1e3 * one.learner.cpu_s[part] / one.rollouts for one in measured), 2)
                    for part in (ROLLOUTS, POLICIES, TRAINER, OTHERS)
                ),
                middle((1e3 * one.relays.cpu_s.total() / one.rollouts for one in measured), 2),
                middle(one.rollouts / one.seconds for one in measured),
                middle(float(one.learner.n_threads) for one in measured),
                middle(one.learner.resident_mib for one in measured),
                middle(one.relays.n_threads / n_between for one in measured),
                middle(one.relays.resident_mib / n_between for one in measured),
            )
        )
    parts = (f"of that {part}" for part in (ROLLOUTS, POLICIES, TRAINER, OTHERS))
    header = ("actors", "learner: ms a rollout", *parts, "relays: ms a rollout", "rollouts/s")
    print_table((*header, "learner: threads", "learner: MiB", "a relay: threads", "a relay: MiB"), rows)


if __name__ == "__main__":
    main()
