"""Runs every test and every benchmark that wants a GPU, and prints one table: `make gpu`.

    python -m benchmarks.gpu [--limit-s 560] [--only updates ppo tests] [--output build/gpu.md] [--device cpu]

The tests are those with the marker `gpu`; the benchmarks are those of `MEASUREMENTS`, each a process of its own, so
that one that fails or hangs leaves the others. The table is also written to a file, with the GPU and the versions above
it; benchmarks/pages/gpu.md says where to record it. There is a table within the limit: the benchmarks come first, each
with its share of the time; the tests have the rest, and those that have run by then count. Without a CUDA device it
says so, runs nothing, and ends with exit code 2; with 1 if a test or a benchmark fails. With `--device cpu` all
benchmarks run in a small size, to show that they run; that is no measurement. `benchmarks/gpu.sh` does it on a machine
without network.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import torch

from benchmarks.table import print_table

ROOT = Path(__file__).parents[1]
TESTS = "tests"
NO_GPU = 2
# The exit code of a command that had no time left.
LATE = 124
# The time in which a command may end by itself when its time is up: pytest then writes its report.
_GRACE_S = 15.0
# Most of a test is work of the host.
_N_PROCESSES = "4"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A benchmark of the table.

    Attributes:
        name: What `--only` says; several may share it.
        module: The module in `benchmarks`.
        options: Its options on a GPU.
        small: Its options on a CPU.
        share: Its share of the time, at most.
    """

    name: str
    module: str
    options: tuple[str, ...]
    small: tuple[str, ...]
    share: float

    def arguments(self, device: str) -> tuple[str, ...]:
        """Returns what is typed after `python -m`."""
        options = self.small if device == "cpu" else self.options
        return (f"benchmarks.{self.module}", "--device", device, *options)


def _updates(network: str, share: float) -> Measurement:
    small = ("--networks", network, "--batch-sizes", "4", "--n-steps", "4", "--seconds", "0.1")
    return Measurement("updates", "updates", ("--networks", network, "--seconds", "1"), small, share)


def _ingest(n_feeders: int) -> Measurement:
    options = ("--n-feeders", str(n_feeders), "--batch-size", "128", "--seconds", "2")
    small = ("--n-feeders", "1", "--batch-size", "4", "--n-steps", "4", "--seconds", "0.2")
    return Measurement("stages", "stages", options, small, 0.06)


MEASUREMENTS: Final = (
    _updates("nature", 0.1),
    _updates("impala_resnet", 0.14),
    Measurement("transfers", "transfers", ("--seconds", "1"), ("--seconds", "0.1"), 0.04),
    *(_ingest(n_feeders) for n_feeders in (2, 8, 14)),
    Measurement(
        "ppo", "ppo_pixels", ("--seconds", "15"), ("--seconds", "1", "--n-actors", "1", "--n-steps", "4"), 0.12
    ),
    Measurement("learning", "learning", ("--seconds", "0.5"), ("--seconds", "0.05"), 0.04),
    Measurement(
        "central", "central_inference", ("--seconds", "2", "--rounds", "1"), ("--seconds", "0.1", "--rounds", "1"), 0.04
    ),
)
# A row that people look for, and that cannot run.
LEFT_OUT: Final = "Several ranks on one GPU are left out: NCCL refuses two ranks on one device."

# Runs a command in the project's folder, for so many seconds at most; returns its exit code and what it printed.
Run = Callable[[Sequence[str], float], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the tests, or of a benchmark.

    Attributes:
        what: Its name in the table.
        command: The command, to run it alone.
        succeeded: False if something failed.
        result: In words.
        seconds: The time that it took.
        output: What it printed.
    """

    what: str
    command: str
    succeeded: bool
    result: str
    seconds: float
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Tests and benchmarks on a GPU.")
    names = tuple(dict.fromkeys((*(each.name for each in MEASUREMENTS), TESTS)))
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to see that everything starts")
    parser.add_argument("--limit-s", type=float, default=560.0, help="the seconds of everything together")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu.md", help="the file for the report")
    options = parser.parse_args(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        print(why_there_is_no_gpu(), file=sys.stderr)
        return NO_GPU
    options.output.parent.mkdir(parents=True, exist_ok=True)
    end = time.perf_counter() + options.limit_s
    outcomes: list[Outcome] = []
    chosen = [each for each in MEASUREMENTS if each.name in options.only]
    for measurement in {each.arguments(options.device): each for each in chosen}.values():
        left_s = end - time.perf_counter() - _GRACE_S
        if options.device != "cpu":
            left_s = min(left_s, measurement.share * options.limit_s)
        outcomes.append(run_benchmark(measurement, options.device, left_s))
        # After each: whoever ends this process has what there is.
        options.output.write_text(report_of(outcomes, machine(options.device)), encoding="utf-8")
    if TESTS in options.only and options.device != "cpu":
        outcomes.append(run_tests(options.output.parent, end - time.perf_counter() - _GRACE_S))
    report = report_of(outcomes, machine(options.device))
    options.output.write_text(report, encoding="utf-8")
    print(f"\n{report}\nwritten to {options.output}; record it in benchmarks/pages/gpu.md")
    return 0 if all(outcome.succeeded for outcome in outcomes) else 1


def why_there_is_no_gpu() -> str:
    """Says why nothing runs here."""
    driver = "nvidia-smi is here" if shutil.which("nvidia-smi") else "there is no nvidia-smi, so no driver either"
    built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built for CPUs only"
    return (
        f"make gpu: torch {torch.__version__} finds no CUDA device: it {built}, and {driver}; nothing was run. "
        "Expected a machine with an NVIDIA GPU, its driver, and a torch for CUDA; install that torch into .venv with "
        "pip, from the index that pytorch.org names for the driver, in the version of constraints.txt"
    )


def run_tests(folder: Path, limit_s: float, run: Run | None = None) -> Outcome:
    """Runs all tests with the marker `gpu`, in a few processes if pytest-xdist is there.

    Args:
        folder: Gets pytest's report, `gpu.xml`.
        limit_s: The seconds that they may take.
        run: Runs the command; None: as a process whose output is shown.
    """
    path = folder / "gpu.xml"
    path.unlink(missing_ok=True)
    several = ("-n", _N_PROCESSES, "--dist", "worksteal") if importlib.util.find_spec("xdist") else ()
    command = (
        *(sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--junitxml", str(path), *several),
        # Warnings of another version of torch than ours say nothing of a GPU.
        *("-o", "filterwarnings=default", *map(str, places_of_tests(ROOT / "tests"))),
    )
    began = time.perf_counter()
    code, output = (run or run_command)(command, limit_s)
    seconds = time.perf_counter() - began
    counts = _counts(path)
    succeeded = code == 0 and counts["passed"] > 0
    result = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n) or f"no test ran, exit code {code}"
    if code == LATE:
        result += f"; ended after {limit_s:.0f} s"
    return Outcome("tests marked `gpu`", "pytest -m gpu", succeeded, result, seconds, output)


def places_of_tests(folder: Path) -> list[Path]:
    """Returns the files with tests that want a GPU, and the folders in which a conftest.py makes tests want one.

    Others may import what a bare machine lacks.
    """
    marked = [path for path in sorted(folder.rglob("*.py")) if "mark.gpu" in path.read_text(encoding="utf-8")]
    folders = [path.parent for path in marked if path.name == "conftest.py"]
    tests = [path for path in marked if path.name.startswith("test_") and path.name != "test_gpu_report.py"]
    return [*folders, *(path for path in tests if not any(path.is_relative_to(folder) for folder in folders))]


def run_benchmark(measurement: Measurement, device: str, limit_s: float, run: Run | None = None) -> Outcome:
    """Runs a benchmark on a device; see `run_tests`."""
    arguments = measurement.arguments(device)
    began = time.perf_counter()
    code, output = (run or run_command)((sys.executable, "-m", *arguments), limit_s)
    result = "its table is below" if code == 0 else f"failed with exit code {code}"
    if code == LATE:
        result = f"ended after {limit_s:.0f} s"
    shown = f"python -m {' '.join(arguments)}"
    return Outcome(measurement.name, shown, code == 0, result, time.perf_counter() - began, output)


def report_of(outcomes: Sequence[Outcome], where: str) -> str:
    """Returns one table of everything, and what each benchmark printed below it, as Markdown."""
    rows = [
        (
            outcome.what,
            f"`{outcome.command}`",
            "ok" if outcome.succeeded else "**failed**",
            outcome.result,
            f"{outcome.seconds:.0f}",
        )
        for outcome in outcomes
    ]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_table(("what", "command", "", "result", "s"), rows)
    parts = [where, text.getvalue().rstrip()]
    measured = {measurement.name for measurement in MEASUREMENTS}
    parts += [f"`{outcome.command}`:\n\n{outcome.output.strip()}" for outcome in outcomes if outcome.what in measured]
    return "\n\n".join((*parts, LEFT_OUT)) + "\n"


def machine(device: str) -> str:
    """Returns the device, the versions and the day, in a line."""
    if device == "cpu":
        return f"The CPU, in small sizes: no measurement; torch {torch.__version__}; {datetime.now(UTC):%Y-%m-%d}"
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    return (
        f"{name}, {memory / 2**30:.0f} GiB; torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN "
        f"{torch.backends.cudnn.version()}; {datetime.now(UTC):%Y-%m-%d}"
    )


def run_command(command: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Runs a command and shows its lines as they come; asks it to end when its time is up, and kills it if it does not.

    Returns:
        Its exit code, `LATE` if it had no time left; and what it printed.
    """
    print(f"== {' '.join(command[1:])}", flush=True)
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None  # a pipe
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            with contextlib.suppress(ProcessLookupError):  # it has ended
                process.send_signal(signal.SIGINT)

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)

        timers = [threading.Timer(max(limit_s, 0.0), end), threading.Timer(max(limit_s, 0.0) + _GRACE_S, kill)]
        for timer in timers:
            timer.start()
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
            process.wait()
        finally:
            for timer in timers:
                timer.cancel()
    return LATE if is_late.is_set() else process.returncode, "".join(lines)


def _counts(path: Path) -> dict[str, int]:
    """Reads pytest's report; all 0 if it wrote none."""
    suites = list(ET.parse(path).iter("testsuite")) if path.is_file() else []
    found = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = found["failures"] + found["errors"]
    return {"passed": found["tests"] - failed - found["skipped"], "failed": failed, "skipped": found["skipped"]}


if __name__ == "__main__":
    sys.exit(main())
