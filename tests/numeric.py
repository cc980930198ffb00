"""Runs the numeric tests with every instruction set that the processor has, on one thread and on two.

`python -m tests.numeric`, or `make numeric`. `docs/development/testing.md` says which tests are numeric.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.processes import ROOT
from tests.stages import REPORTS

# From the least to the most, each as torch, oneDNN, numpy's OpenBLAS and torch's MKL name it. On processors that are
# not Intel's, MKL knows COMPATIBLE and what it chooses itself, and takes the latter for every other value.
INSTRUCTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {"ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem", "MKL_CBWR": "COMPATIBLE"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell", "MKL_CBWR": "AVX2,STRICT"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OPENBLAS_CORETYPE": "SkylakeX", "MKL_CBWR": "AVX512,STRICT"},
}
N_THREADS: Final = (1, 2)
# Everything in these folders is numeric, and elsewhere in tests/unit each file that compares within a tolerance.
FOLDERS: Final = ("actor/policies", "learner/algorithms", "learner/devices")
_COMPARES: Final = re.compile(r"\bassert_(close|allclose)\(")
# Left out because they take long and say little here: training until something is learnt, threads beside each other,
# counts of operations, imports, copies from one device to another, dozens of random paddings, waits for a device, the
# order of a client's steps, and sizes of networks.
_LEFT_OUT_FILES: Final = {"test_learning.py"}
_LEFT_OUT: Final = (
    "not (converge or threads_that or everybody or same_operations or torch_compile or upon_another or padding"
    " or no_library or hidden_wait or waits_is_never or whoever_is_ahead or computed_size)"
)


@dataclass(frozen=True)
class Outcome:
    """The result of one run of the tests."""

    name: str
    output: str
    exit_code: int
    seconds: float
    cpu_s: float

    @property
    def line(self) -> str:
        """One line about it: pytest's own last line, and what it cost."""
        last = self.output.strip().rpartition("\n")[2].strip("= ")
        return f"{self.name:18} {self.seconds:5.0f} s, {self.cpu_s:4.0f} s of processor: {last}"


def files() -> Iterator[str]:
    """Yields the files of numeric tests."""
    unit = ROOT / "tests" / "unit"
    for path in sorted(unit.rglob("test_*.py")):
        in_folder = path.parent.relative_to(unit).as_posix() in FOLDERS and path.name not in _LEFT_OUT_FILES
        if in_folder or _COMPARES.search(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT))


def variables(instructions: str, n_threads: int) -> dict[str, str]:
    """Returns the environment of a process that computes with these instructions, on so many threads."""
    threads = ("TEST_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        "ATEN_CPU_CAPABILITY": instructions,
        **INSTRUCTIONS[instructions],
        "NPY_DISABLE_CPU_FEATURES": " ".join(_numpy_features_above(instructions)),
        **dict.fromkeys(threads, str(n_threads)),
        # Two runs share two cores: a thread that waits must not spin on the other's.
        "OMP_WAIT_POLICY": "passive",
    }


def _numpy_features_above(instructions: str) -> list[str]:
    """Returns what numpy would choose of this processor's features beyond these instructions; AVX2 comes with V3."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    kept = {"default": set(), "avx2": {"X86_V3"}, "avx512": set(__cpu_dispatch__)}[instructions]
    return [name for name in __cpu_dispatch__ if __cpu_features__[name] and name not in kept]


def most_of_this_processor() -> str:
    """Returns the last of `INSTRUCTIONS` that this processor has, in a process that no variable limits."""
    asks = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    free = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    return subprocess.run(
        [sys.executable, "-c", asks], env=free, capture_output=True, text=True, check=True
    ).stdout.strip()


def here_and_missing(most: str) -> tuple[list[str], list[str]]:
    """Returns the instruction sets up to the one that a processor has at most, and those above it."""
    names = list(INSTRUCTIONS)
    n_here = names.index(most) + 1
    return names[:n_here], names[n_here:]


def run(instructions: str, n_threads: int, arguments: Sequence[str]) -> Outcome:
    """Runs the tests in a process of their own: libraries choose their instructions once."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not gpu",
        "-k",
        _LEFT_OUT,
        "-p",
        "no:cacheprovider",
        f"--junitxml={REPORTS}/numeric-{instructions}-{n_threads}.xml",
        *arguments,
    ]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables(instructions, n_threads), stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Outcome(
            f"{instructions}, {n_threads} thread{'s' * (n_threads > 1)}",
            output.read(),
            process.returncode,
            time.monotonic() - start,
            usage.ru_utime + usage.ru_stime,
        )


def main(arguments: Sequence[str]) -> int:
    """Runs all, two at a time; returns 1 if one of them failed."""
    most = most_of_this_processor()
    here, missing = here_and_missing(most)
    arguments = [*files(), *arguments]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda cell: run(*cell, arguments), [(i, n) for n in N_THREADS for i in here]))
    failed = [outcome for outcome in outcomes if outcome.exit_code]
    for outcome in failed:
        sys.stdout.write(f"== {outcome.name}\n{outcome.output}\n")
    for outcome in outcomes:
        sys.stdout.write(f"{outcome.line}\n")
    for name in missing:
        sys.stdout.write(f"{name:18} skipped: this processor has no more than {most}\n")
    if missing:
        REPORTS.mkdir(parents=True, exist_ok=True)
        (REPORTS / "numeric.skipped").write_text(f"{', '.join(missing)}: this processor has no more than {most}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
