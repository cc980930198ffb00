"""Measures what it costs to start: the processor time of commands, and of a learner's process until its first update.

    python -m benchmarks.start_up [--rounds 5] [--before TREE]

All times are processor time, user and system, of the one process. With --before, a checkout of another commit is
measured in turns; both use this environment.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.table import Figure, print_table, ratio

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = ("impala", "ppo", "dqn", "sac")
_COMMAND = "from rollcast.learner.__main__ import main; main()"
# Writes the processor time when the first metrics come; the hook imports nothing that the command does not.
_UNTIL_FIRST_UPDATE = """
import importlib.machinery, pathlib, sys, time

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name != "rollcast.learner.training.update_metrics":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            add = module.UpdateMetrics.add
            def first(self, metrics):
                pathlib.Path("first").write_text(str(time.process_time()))
                module.UpdateMetrics.add = add
                add(self, metrics)
            module.UpdateMetrics.add = first
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Hook())
"""


def start(tree: Path, arguments: Sequence[str], *, folder: str, program: str = _COMMAND) -> "subprocess.Popen[bytes]":
    """Starts a command of a tree in a folder."""
    path = os.pathsep.join(str(tree / root) for root in ("services", "actor", "learner", "proto"))
    command = [sys.executable, "-P", "-c", program, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLCAST_")}
    environment["PYTHONPATH"] = path
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=quiet, stderr=quiet)


def cost(process: "subprocess.Popen[bytes]", expected: int = 0) -> float:
    """Waits for the end of a process, and returns its processor time in seconds."""
    _, status, usage = os.wait4(process.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) != expected:
        raise RuntimeError(f"a command ended with {code}: {process.args!r}")
    return usage.ru_utime + usage.ru_stime


def costs(tree: Path) -> Iterator[tuple[str, float]]:
    """Measures a tree once; yields what was measured, with its seconds."""
    with tempfile.TemporaryDirectory(prefix="rollcast-start-") as folder:
        yield "rollcast --help", cost(start(tree, ["--help"], folder=folder))
        yield "rollcast ls", cost(start(tree, ["ls", "."], folder=folder))
        # nobody answers at port 1
        asked = ["status", "--address", "127.0.0.1:1", "--timeout-s", "0.1"]
        yield "rollcast status", cost(start(tree, asked, folder=folder), expected=1)
        common = ["--env-id", "CartPole-v1", "--stop-return", "1e9", "--torch-threads", "1"]
        served = ["--algorithm", "impala", "--n-rollout-steps", "32", "--batch-size", "8", "--total-steps", "1"]
        where = ["--address", "127.0.0.1:0", "--address-file", "address"]
        learner = start(tree, ["learner", *common, *served, *where], folder=folder)
        actor = start(tree, ["actor", "--learner-address", "file:address"], folder=folder)
        yield "rollcast learner, one update and its end", cost(learner)
        yield "rollcast actor, until training has ended", cost(actor)
        program = _UNTIL_FIRST_UPDATE + _COMMAND
        for name in ALGORITHMS:
            own = ["--algorithm", name, "--n-actors", "1", "--total-steps", "600"]
            ended = cost(start(tree, ["train", *common, *own], folder=folder, program=program))
            yield f"rollcast train, {name}, to the first update", float(Path(folder, "first").read_text())
            yield f"rollcast train, {name}, 600 steps and its end", ended


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are printed")
    parser.add_argument("--before", type=Path, help="a checkout to measure in turns")
    parsed = parser.parse_args()
    trees = [ROOT, *([parsed.before.resolve()] if parsed.before else [])]
    found: dict[Path, dict[str, list[float]]] = {tree: {} for tree in trees}
    for index in range(parsed.rounds):
        for tree in trees if index % 2 == 0 else reversed(trees):
            for name, seconds in costs(tree):
                found[tree].setdefault(name, []).append(seconds)
                print(f"round {index + 1}, {tree}: {name}: {seconds:.3f} s", file=sys.stderr, flush=True)
    print(f"processor seconds of one process; {parsed.rounds} rounds, medians")
    rows: list[tuple[str | Figure, ...]] = []
    for name, ours in found[ROOT].items():
        before = [rounds[name] for tree, rounds in found.items() if tree is not ROOT]
        compared = [cell for theirs in before for cell in (Figure(theirs, ".2f", unit="s"), ratio(ours, theirs))]
        rows.append((name, Figure(ours, ".2f", unit="s", has_range=True), *compared))
    print_table(("what", "this tree", *(("before", "ratio") if parsed.before else ())), rows)


if __name__ == "__main__":
    main()
