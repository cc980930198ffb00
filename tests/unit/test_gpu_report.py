"""`make gpu`: runs everything that wants a GPU, says so where there is none, and tells failures."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from tests.processes import ROOT

PASSED = '<testsuites><testsuite tests="5" failures="0" errors="0" skipped="1"/></testsuites>'
FAILED = '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="0"/></testsuites>'


def test_every_benchmark_with_a_device_is_run():
    with_device = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if re.search(r'add_argument\(\s*"--device"', path.read_text())
    }
    assert with_device == set(gpu.BENCHMARKS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_it_says_so_and_runs_nothing(tmp_path: Path, capsys):
    output = tmp_path / "gpu.md"
    assert gpu.main(["--output", str(output)]) == gpu.NO_GPU
    said = capsys.readouterr()
    assert "finds no CUDA device" in said.err
    assert "nothing was run. Expected a machine with an NVIDIA GPU, its driver, and a torch for CUDA" in said.err
    assert not said.out
    assert not output.exists()


@pytest.mark.parametrize(
    ("xml", "code", "succeeded", "result"),
    [
        (PASSED, 0, True, "4 passed, 1 skipped"),
        (FAILED, 1, False, "3 passed, 2 failed"),
        (None, 4, False, "no test ran, exit code 4"),
        ('<testsuite tests="3" skipped="3"/>', 0, False, "3 skipped"),
    ],
)
def test_the_tests_outcome_is_what_pytest_reports(
    tmp_path: Path, xml: str | None, code: int, succeeded: bool, result: str
):
    def run(command: Sequence[str]) -> tuple[int, str]:
        assert command[:5] == (sys.executable, "-m", "pytest", "-m", "gpu")
        if xml is not None:
            (tmp_path / "gpu.xml").write_text(xml)
        return code, ""

    (tmp_path / "gpu.xml").write_text(PASSED)  # of a run before
    outcome = gpu.run_tests(tmp_path, run)
    assert (outcome.succeeded, outcome.result) == (succeeded, result)


def test_the_report_is_one_table_with_the_benchmarks_below():
    outcomes = [
        gpu.Outcome("tests marked `gpu`", "pytest -m gpu", False, "3 passed, 2 failed", 61.4, "dots"),
        gpu.run_benchmark("stages", 2.0, lambda command: (0, "| stage | rate |\n")),
    ]
    report = gpu.report_of(outcomes, "A GPU, 80 GiB")
    assert report.startswith("A GPU, 80 GiB\n\n| what ")
    assert re.search(
        r"\| tests marked `gpu` +\| `pytest -m gpu` +\| \*\*failed\*\* +\| 3 passed, 2 failed +\| 61 ", report
    )
    assert re.search(
        r"\| stages +\| `python -m benchmarks.stages --device cuda` +\| ok +\| its table is below +\|", report
    )
    assert report.endswith("`python -m benchmarks.stages --device cuda`:\n\n| stage | rate |\n")


def test_a_benchmark_that_fails_is_told():
    outcome = gpu.run_benchmark("learning", 1.0, lambda command: (3, "out of memory"))
    assert (outcome.succeeded, outcome.result) == (False, "failed with exit code 3")
