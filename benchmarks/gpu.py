"""Runs every test and every benchmark that wants a GPU, and prints one table: `make gpu`.

    python -m benchmarks.gpu [--seconds 3] [--only tests stages learning] [--output build/gpu.md]

The tests are those with the marker `gpu`; the benchmarks are those with an option `--device`. The table is also
written to a file, with the GPU and the versions above it; benchmarks/README.md says where to record it. Without a CUDA
device it says so, runs nothing, and ends with exit code 2; with 1 if a test or a benchmark fails.
"""

import argparse
import contextlib
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import torch

from benchmarks.table import print_table

ROOT = Path(__file__).parents[1]
TESTS = "tests"
# Every benchmark with an option `--device`.
BENCHMARKS = ("learning", "stages")
NO_GPU = 2

# Runs a command in the project's folder; returns its exit code and what it printed.
Run = Callable[[Sequence[str]], tuple[int, str]]


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
    parser.add_argument("--seconds", type=float, default=3.0, help="the seconds of each measurement of a benchmark")
    parser.add_argument("--only", nargs="+", choices=(TESTS, *BENCHMARKS), default=(TESTS, *BENCHMARKS), metavar="NAME")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu.md", help="the file for the report")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(why_there_is_no_gpu(), file=sys.stderr)
        return NO_GPU
    options.output.parent.mkdir(parents=True, exist_ok=True)
    outcomes = [
        run_tests(options.output.parent) if name == TESTS else run_benchmark(name, options.seconds)
        for name in options.only
    ]
    report = report_of(outcomes, machine())
    options.output.write_text(report, encoding="utf-8")
    print(f"\n{report}\nwritten to {options.output}; record it in benchmarks/README.md, in the section 'On a GPU'")
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


def run_tests(folder: Path, run: Run | None = None) -> Outcome:
    """Runs all tests with the marker `gpu`, here one after the other: they share one GPU.

    Args:
        folder: Gets pytest's report, `gpu.xml`.
        run: Runs the command; None: as a process whose output is shown.
    """
    path = folder / "gpu.xml"
    path.unlink(missing_ok=True)
    command = (sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--junitxml", str(path), str(ROOT / "tests"))
    began = time.perf_counter()
    code, output = (run or _run)(command)
    seconds = time.perf_counter() - began
    counts = _counts(path)
    succeeded = code == 0 and counts["passed"] > 0
    result = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n) or f"no test ran, exit code {code}"
    return Outcome("tests marked `gpu`", "pytest -m gpu", succeeded, result, seconds, output)


def run_benchmark(name: str, seconds: float, run: Run | None = None) -> Outcome:
    """Runs a benchmark on the GPU; see `run_tests`."""
    command = (sys.executable, "-m", f"benchmarks.{name}", "--device", "cuda", "--seconds", f"{seconds:g}")
    began = time.perf_counter()
    code, output = (run or _run)(command)
    result = "its table is below" if code == 0 else f"failed with exit code {code}"
    shown = f"python -m benchmarks.{name} --device cuda"
    return Outcome(name, shown, code == 0, result, time.perf_counter() - began, output)


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
    parts += [f"`{outcome.command}`:\n\n{outcome.output.strip()}" for outcome in outcomes if outcome.what in BENCHMARKS]
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """Returns the GPU, the versions and the day, in a line."""
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    return (
        f"{name}, {memory / 2**30:.0f} GiB; torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN "
        f"{torch.backends.cudnn.version()}; {datetime.now(UTC):%Y-%m-%d}"
    )


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Runs a command and shows its lines as they come."""
    print(f"== {' '.join(command[1:])}", flush=True)
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


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
