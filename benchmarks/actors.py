"""Measures the learner's processor time for each rollout, with 4 to 256 actors that are connected directly.

    python -m benchmarks.actors [--actors 4,16,64,256] [--seconds 5] [--rounds 3] [-- OPTIONS OF THE LEARNER]

The learner is `rollcast learner` in a process of its own, with its watchdogs, metrics and history. The actors are those
of `benchmarks.synthetic_actors` in processes of their own, whose time does not count: they send rollouts of 32 steps of
one environment as fast as their credits allow. Each round measures every number of actors once, with a learner of its
own. The ratio is the median of the ratios of all rounds.

The learner's time is also given by what its threads do: those that take rollouts, those that send policies, the
trainer, and all others, most of them gRPC's own. Policies are sent after each update of 8 rollouts, to more subscribers
with more actors; with --same-publishing, after so many updates that the policies for each rollout are as many.
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

from benchmarks.table import Figure, print_table, ratio
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError

_ROOT = Path(__file__).resolve().parent.parent
_START_TIMEOUT_S = 400.0
_ACTORS_PER_PROCESS = 128
_SETTLE_S = 3.0
# A thread has its name once it was seen at its work.
_N_LOOKS = 10
ROLLOUTS, POLICIES, TRAINER, OTHERS = "rollouts", "policies", "trainer", "others"

# The learner's command line, with the threads named after what they serve, where the kernel shows it: Python names no
# thread there before 3.14.
_NAMED_LEARNER = f"""
import sys, threading, time
from rollcast.tools.cli import main
NAMES = {{"stream_rollouts": "{ROLLOUTS}", "stream_bundles": "{ROLLOUTS}", "read_bundles": "{ROLLOUTS}",
    "subscribe_policy": "{POLICIES}", "_train": "{TRAINER}"}}
named = set()
def name_threads():
    natives = {{thread.ident: thread.native_id for thread in threading.enumerate()}}
    for ident, frame in sys._current_frames().items():
        while ident in natives and ident not in named and frame is not None:
            name, frame = NAMES.get(frame.f_code.co_name), frame.f_back
            if name:
                named.add(ident)
                open(f"/proc/self/task/{{natives[ident]}}/comm", "w").write(name)
def name_threads_when_asked():
    for _ in sys.stdin:
        name_threads()
threading.Thread(target=name_threads_when_asked, daemon=True).start()
sys.exit(main())
"""


class Cost(NamedTuple):
    """The learner's processor time in a measurement.

    Attributes:
        rollouts: The rollouts that it took.
        seconds: The seconds that it took them in.
        cpu_s: Processor seconds by what the threads do.
        n_updates: Its updates.
        n_threads: Its threads at the end.
        resident_mib: Its resident memory at the end.
    """

    rollouts: int
    seconds: float
    cpu_s: Counter[str]
    n_updates: int
    n_threads: int
    resident_mib: float

    @property
    def ms_a_rollout(self) -> float:
        """The processor time of all threads for a rollout, in milliseconds."""
        return 1e3 * sum(self.cpu_s.values()) / self.rollouts


def thread_times(pid: int) -> Counter[str]:
    """Returns the processor time of a process by the names of its threads, in seconds."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            name = (task / "comm").read_text().strip()
            found[name if name in (ROLLOUTS, POLICIES, TRAINER) else OTHERS] += (
                int((task / "schedstat").read_text().split()[0]) / 1e9
            )
    return found


@contextlib.contextmanager
def learner(folder: str, n_actors: int, options: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a learner; yields its process, which names its threads whenever it reads a line, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["--env-id", "CartPole-v1", "--address", address, "--max-actors", str(n_actors), "--torch-threads", "1"]
    command += ["--n-rollout-steps", "32", "--envs-per-actor", "1", "--stop-return", "1e9", "--algorithm", "impala"]
    command += ["--limits.calls-per-second-per-host", "100000", "--limits.calls-per-second", "100000"]
    command += ["--total-steps", "1000000000", "--run-dir", f"{folder}/run", *options]
    process = subprocess.Popen(
        [sys.executable, "-c", _NAMED_LEARNER, "learner", *command],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process, address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def name_threads(learner_process: "subprocess.Popen[str]") -> None:
    """Lets the learner name its threads, which takes 3 s."""
    assert learner_process.stdin is not None
    for _ in range(_N_LOOKS):
        print("name threads", file=learner_process.stdin, flush=True)
        time.sleep(_SETTLE_S / _N_LOOKS)


@contextlib.contextmanager
def acting(address: str, n_actors: int, options: Sequence[str], *, first: int = 0) -> Iterator[None]:
    """Runs actors; `first` is the number of the first, for its name."""
    processes = []
    for start in range(first, first + n_actors, _ACTORS_PER_PROCESS):
        n_here = min(_ACTORS_PER_PROCESS, first + n_actors - start)
        command = ["benchmarks.synthetic_actors", address, "--actors", str(n_here), "--first", str(start), *options]
        processes.append(subprocess.Popen([sys.executable, "-m", *command], cwd=_ROOT))
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(n_actors: int, seconds: float, options: Sequence[str], play_s: float) -> Cost:
    """Measures a learner with so many actors."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        process, address = stack.enter_context(learner(folder, n_actors, options))
        pid = process.pid
        # the actors go first, or the learner's last seconds would be theirs
        stack.enter_context(acting(address, n_actors, ("--play-s", str(play_s))))
        client = stack.enter_context(LearnerClient(address))
        until_all_play(client, n_actors)
        name_threads(process)
        before, cpu, began = rollouts_of(client), thread_times(pid), time.perf_counter()
        updates = client.status().updates
        time.sleep(seconds)
        after, cpu_after, ended = rollouts_of(client), thread_times(pid), time.perf_counter()
        status = Path(f"/proc/{pid}/status").read_text()
        return Cost(
            rollouts=after - before,
            seconds=ended - began,
            cpu_s=cpu_after - cpu,
            n_updates=client.status().updates - updates,
            n_threads=int(status.split("Threads:")[1].split()[0]),
            resident_mib=int(status.split("VmRSS:")[1].split()[0]) / 1024,
        )


def rollouts_of(client: LearnerClient) -> int:
    """Returns the rollouts that a learner has taken."""
    return sum(info.rollouts for info in client.actors())


def until_all_play(client: LearnerClient, n_actors: int) -> None:
    """Waits until each of so many actors has sent a rollout."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(RollcastError):  # the learner starts
            if sum(info.rollouts > 0 for info in client.actors()) == n_actors:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{n_actors} actors do not play within {_START_TIMEOUT_S:.0f} s")


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", default="4,16,64,256", help="numbers of actors; the first is compared with")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are printed")
    parser.add_argument("--play-s", type=float, default=0.0, help="seconds that an actor plays; 0: as fast as it may")
    parser.add_argument(
        "--same-publishing", action="store_true", help="policies for each rollout as with the first number of actors"
    )
    parser.add_argument("learner_options", nargs="*", help="more options of the learner, after --")
    options = parser.parse_args()
    numbers = [int(number) for number in options.actors.split(",")]
    found: dict[int, list[Cost]] = {number: [] for number in numbers}
    for _ in range(options.rounds):
        for number in numbers:
            more = options.learner_options
            if options.same_publishing:
                more = [*more, "--updates-per-broadcast", str(max(1, number // numbers[0]))]
            found[number].append(measure(number, options.seconds, more, options.play_s))
    rows = []
    for number, costs in found.items():

        def middle(values: Iterator[float], digits: int = 2) -> Figure:
            return Figure(list(values), f",.{digits}f")

        rows.append(
            (
                str(number),
                middle(cost.ms_a_rollout for cost in costs),
                ratio((cost.ms_a_rollout for cost in costs), (cost.ms_a_rollout for cost in found[numbers[0]])),
                *(
                    middle(1e3 * cost.cpu_s[part] / cost.rollouts for cost in costs)
                    for part in (ROLLOUTS, POLICIES, TRAINER, OTHERS)
                ),
                middle((cost.rollouts / cost.seconds for cost in costs), 0),
                middle((cost.rollouts / max(1, cost.n_updates) for cost in costs), 1),
                middle((float(cost.n_threads) for cost in costs), 0),
                middle((cost.resident_mib for cost in costs), 0),
            )
        )
    parts = (f"of that {part}" for part in (ROLLOUTS, POLICIES, TRAINER, OTHERS))
    header = ("actors", "ms a rollout", "ratio", *parts, "rollouts/s", "an update", "threads", "MiB")
    print_table(header, rows)


if __name__ == "__main__":
    main()
