"""`make gpu`: runs everything that wants a GPU, says so where there is none, and tells failures."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
import torch

from benchmarks import bare_gpu, gpu
from tests.processes import ROOT, wait_until

(TRANSFERS,) = (measurement for measurement in gpu.MEASUREMENTS if measurement.name == "transfers")

PASSED = '<testsuites><testsuite tests="5" failures="0" errors="0" skipped="1"/></testsuites>'
FAILED = '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="0"/></testsuites>'


def test_every_benchmark_with_a_device_is_run():
    with_device = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if re.search(r'add_argument\(\s*"--device"', path.read_text())
    }
    assert with_device - {"gpu"} == {measurement.module for measurement in gpu.MEASUREMENTS}


def test_the_benchmarks_leave_the_tests_a_third_of_the_time():
    assert sum(measurement.share for measurement in gpu.MEASUREMENTS) < 2 / 3


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
    def run(command: Sequence[str], limit_s: float) -> tuple[int, str]:
        assert limit_s == 7.0
        assert command[:5] == (sys.executable, "-m", "pytest", "-m", "gpu")
        if xml is not None:
            (tmp_path / "gpu.xml").write_text(xml)
        return code, ""

    (tmp_path / "gpu.xml").write_text(PASSED)  # of a run before
    outcome = gpu.run_tests(tmp_path, 7.0, run)
    assert (outcome.succeeded, outcome.result) == (succeeded, result)


def test_the_report_is_one_table_with_the_benchmarks_below():
    outcomes = [
        gpu.Outcome("tests marked `gpu`", "pytest -m gpu", False, "3 passed, 2 failed", 61.4, "dots"),
        gpu.run_benchmark(TRANSFERS, "cuda", 60.0, lambda command, limit_s: (0, "| size | rate |\n")),
    ]
    report = gpu.report_of(outcomes, "A GPU, 80 GiB")
    assert report.startswith("A GPU, 80 GiB\n\n| what ")
    assert re.search(
        r"\| tests marked `gpu` +\| `pytest -m gpu` +\| \*\*failed\*\* +\| 3 passed, 2 failed +\| 61 ", report
    )
    assert re.search(
        r"\| transfers +\| `python -m benchmarks.transfers --device cuda --seconds 1` +\| ok +\| its table is below ",
        report,
    )
    assert "`python -m benchmarks.transfers --device cuda --seconds 1`:\n\n| size | rate |\n" in report
    assert report.endswith(f"{gpu.LEFT_OUT}\n")


def test_a_benchmark_that_fails_is_told():
    outcome = gpu.run_benchmark(TRANSFERS, "cuda", 60.0, lambda command, limit_s: (3, "out of memory"))
    assert (outcome.succeeded, outcome.result) == (False, "failed with exit code 3")


TESTS_THAT_HANG = """
import pathlib
import threading

import pytest

pytestmark = pytest.mark.gpu

def test_passes():
    pass

def test_hangs():
    pathlib.Path("hangs").touch()
    threading.Event().wait(60)
"""


@pytest.mark.slow
def test_tests_that_hang_are_ended_and_those_before_them_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class FromTheHang(threading.Timer):
        """Counts its time from when a test hangs: pytest takes long to start on a busy machine."""

        def run(self) -> None:
            wait_until((tmp_path / "hangs").exists, "a test to hang", 60)
            super().run()

    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_those.py").write_text(TESTS_THAT_HANG)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu.threading, "Timer", FromTheHang)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    # Without plugins pytest starts in a tenth of the time, also on a busy machine.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    outcome = gpu.run_tests(tmp_path, 1.0)
    assert not outcome.succeeded
    assert re.fullmatch(r"1 passed(, 1 failed)?; ended after 1 s", outcome.result), outcome


def test_a_command_that_does_not_heed_its_end_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "_GRACE_S", 0.2)
    deaf = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    code, output = gpu.run_command((sys.executable, "-c", deaf), 1.0)
    assert (code, output) == (gpu.LATE, "deaf\n")


def test_what_fails_leaves_a_table_of_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "machine", lambda device: "A GPU")
    ran = []

    def run(command: Sequence[str], limit_s: float) -> tuple[int, str]:
        assert 0 < limit_s < 560
        ran.append(command[2])
        return (1 if command[2] == "benchmarks.learning" else 0), "| a | b |\n"

    monkeypatch.setattr(gpu, "run_command", run)
    output = tmp_path / "gpu.md"
    assert gpu.main(["--output", str(output)]) == 1
    assert ran == [*(f"benchmarks.{measurement.module}" for measurement in gpu.MEASUREMENTS), "pytest"]
    report = output.read_text()
    assert "failed with exit code 1" in report
    assert "its table is below" in report
    assert "no test ran, exit code 0" in report


def test_every_test_that_wants_a_gpu_is_in_the_places_that_are_run():
    places = gpu.places_of_tests(ROOT / "tests")
    assert ROOT / "tests" / "unit" / "learner" / "replay" in places
    assert all(place.exists() for place in places)
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()}
    assert all(any(path.is_relative_to(place) for place in places) for path in marked - {Path(__file__)})


def test_what_a_bare_machine_lacks_comes_with_all_that_it_needs():
    names = {line.partition("==")[0] for line in bare_gpu.requirements(["pydantic-settings", "gymnasium"])}
    assert {"pydantic-settings", "pydantic", "pydantic-core", "gymnasium", "farama-notifications"} <= names
    assert not names & {"numpy", "torch"}


STARTS = """
import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
from benchmarks import stages, transfers

transfers.main(["--seconds", "0"])
sys.argv[1:] = ["--n-feeders", "1", "--batch-size", "4", "--n-steps", "4", "--seconds", "0.1"]
stages.main()
"""


@pytest.mark.slow
def test_a_machine_with_torch_and_the_wheels_alone_serves_and_measures(tmp_path: Path):
    """Links the packages of the wheels, torch and what torch needs; nothing else can be imported."""
    there = bare_gpu.requirements(bare_gpu.THERE, there=frozenset())
    for line in {*bare_gpu.requirements(bare_gpu.WANTED), *there}:
        package = metadata.distribution(line.partition("==")[0])
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(str(package.locate_file(top)))
    roots = [tmp_path, *(ROOT / name for name in ("proto", "services", "actor", "learner")), ROOT]
    modules = [f"benchmarks.{measurement.module}" for measurement in gpu.MEASUREMENTS]
    process = subprocess.run(
        [sys.executable, "-S", "-c", STARTS, *modules],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert "| all together |" in process.stdout
