"""`make test` runs every stage, and its last lines say what came of them."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, is_alive, wait_until

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_1"/>
<testcase classname="tests.unit.test_a" name="test_2"><failure message="assert"/></testcase>
<testcase classname="tests.unit.test_a" name="test_2"><error message="at the end"/></testcase>
<testcase classname="tests.unit.test_b" name="test_1"><skipped message="no GPU"/></testcase>
<testcase classname="tests.unit.test_b" name="test_2"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""
GREEN = '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="test_1"/></testsuite></testsuites>'


@pytest.fixture
def start(tmp_path: Path):
    """Starts the stages of a Makefile, whose recipes may copy `red.xml` and `green.xml`."""

    def start(makefile: str, *arguments: str, by_make: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.stages", *arguments]
        if by_make:
            makefile += f"all:\n\t@{shlex.join(command)}\n"
        (tmp_path / "Makefile").write_text(makefile)
        (tmp_path / "red.xml").write_text(REPORT)
        (tmp_path / "green.xml").write_text(GREEN)
        # without what a `make test` around this test says
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.Popen(
            ["make", "all"] if by_make else command,
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Returns the exit code and the lines that were printed."""
    said, _ = process.communicate(timeout=60)
    return process.returncode, said.splitlines()


def test_a_stage_that_fails_hides_no_other_and_is_named_at_the_end(start):
    makefile = "lint:\n\t@echo E501; false\ntypes:\n\t@echo fine\nunit:\n\t@cp red.xml build/tests/unit.xml; false\n"
    makefile += "system:\n\t@cp green.xml build/tests/system.xml\n"
    code, lines = ended(start(makefile, "--at-once", "lint", "types", "--", "unit", "system"))
    assert code == 1
    assert {"E501", "fine"} <= set(lines)
    outcomes = {line.partition(",")[0] for line in lines if line.startswith("== ")}
    assert outcomes == {"== lint: FAILED", "== types: passed", "== unit: FAILED", "== system: passed"}
    assert lines[-4:] == [
        "failed: lint",
        "failed: unit: tests.unit.test_a::test_2",
        "passed 3; failed 2 (lint, unit); skipped 2 (2: no GPU)",
        "3 passed, 2 failed, 2 skipped",
    ]


def test_all_is_well(start):
    code, lines = ended(start("unit:\n\t@cp green.xml build/tests/unit.xml\n", "unit"))
    assert code == 0
    assert lines[-2:] == ["passed 1; failed none; skipped none", "1 passed, 0 failed, 0 skipped"]


@pytest.mark.parametrize("recipe", ["false", "cp green.xml build/tests/unit.xml; false"], ids=["no report", "a report"])
def test_a_stage_fails_whose_tests_say_nothing_of_it(start, recipe):
    code, lines = ended(start(f"unit:\n\t@{recipe}\n", "unit"))
    assert code == 1
    assert "failed: unit" in lines
    assert lines[-1].endswith(" passed, 1 failed, 0 skipped")


def test_a_report_of_an_earlier_run_does_not_count(start, tmp_path):
    (tmp_path / "build/tests").mkdir(parents=True)
    for name in ("unit.xml", "unit-avx2.xml", "unit.skipped"):
        (tmp_path / "build/tests" / name).write_text(REPORT)
    code, lines = ended(start("unit:\n\t@false\n", "unit"))
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


def test_a_damaged_report_is_a_failure(start):
    code, lines = ended(start("unit:\n\t@echo '<testsuites>' >build/tests/unit.xml\n", "unit"))
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


def test_several_reports_of_a_stage_are_added(start):
    makefile = "numeric:\n\t@for isa in avx2 default; do cp green.xml build/tests/numeric-$$isa.xml; done\n"
    assert ended(start(makefile, "numeric"))[1][-1] == "2 passed, 0 failed, 0 skipped"


def test_a_stage_that_cannot_run_here_says_why(start):
    code, lines = ended(start("light-3.13:\n\t@echo no Python 3.13 >build/tests/$@.skipped\n", "light-3.13"))
    assert code == 0
    assert lines[0].startswith("== light-3.13: skipped, ")
    assert lines[-2:] == [
        "passed 0; failed none; skipped 1 (1: light-3.13: no Python 3.13)",
        "0 passed, 0 failed, 1 skipped",
    ]


def test_stages_at_once_run_beside_the_others(start):
    makefile = "lint:\n\t@until [ -e begun ]; do sleep 0.05; done\nunit:\n\t@touch begun\n"
    code, lines = ended(start(makefile, "--at-once", "lint", "--", "unit"))
    assert code == 0
    assert {line.partition(",")[0] for line in lines if line.startswith("== ")} == {
        "== unit: passed",
        "== lint: passed",
    }


def test_after_an_interrupt_the_stage_ends_in_its_time_and_no_other_begins(start):
    makefile = (
        "unit:\n\t@sleep 60 & trap 'kill $$!; echo tidied up; exit 1' INT; echo begun; wait\nsystem:\n\t@echo system\n"
    )
    makefile += "lint types:\n\t@sleep 60\ndocs:\n\t@echo docs\n"
    process = start(makefile, "--at-once", "lint", "types", "docs", "--", "unit", "system")
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    code, lines = ended(process)
    assert code == 130
    assert "tidied up" in lines
    assert not {"system", "docs"} & set(lines)


def test_an_interrupt_ends_stages_beside_that_were_started_too_late_for_it(start, tmp_path):
    makefile = "unit:\n\t@trap '' INT; until [ -e begun ]; do sleep 0.05; done; echo begun; "
    makefile += "until [ -e told ]; do sleep 0.05; done\n"
    process = start(makefile + "lint:\n\t@touch begun; sleep 60; true\n", "--at-once", "lint", "--", "unit")
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)  # to it alone
    assert process.stdout.readline().startswith("make: *** ")
    (tmp_path / "told").touch()
    code, lines = ended(process)
    assert code == 130
    assert "failed: lint" in lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_that_ends_all_ends_stages_beside_too(start, tmp_path, number):
    """They are in groups of their own."""
    makefile = "unit:\n\t@until [ -s beside ]; do sleep 0.05; done; echo begun; sleep 300\n"
    makefile += "lint:\n\t@echo $$$$ >beside; sleep 300; true\n"
    process = start(makefile, "--at-once", "lint", "--", "unit")
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, number)
    assert ended(process)[0] == -number
    beside = int((tmp_path / "beside").read_text())
    wait_until(lambda: not is_alive(beside), "the end of the stage beside")


BOTH_STAY = (
    "unit:\n\t@echo $$$$ >stage; until [ -s beside ]; do sleep 0.05; done; echo begun; sleep 300; true\n"
    "lint:\n\t@echo $$$$ >beside; sleep 300; true\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_for_the_runner_alone_ends_the_stages(start, tmp_path, number):
    process = start(BOTH_STAY, "--at-once", "lint", "--", "unit", "docs")
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert ended(process)[0] == -number
    assert_both_end(tmp_path)


def test_the_stages_end_with_a_make_that_is_killed(start, tmp_path):
    process = start(BOTH_STAY, "--at-once", "lint", "--", "unit", "docs", by_make=True)
    assert process.stdout.readline() == "begun\n"
    process.kill()
    _, lines = ended(process)
    assert not [line for line in lines if line.startswith("== docs")]
    assert_both_end(tmp_path)


def assert_both_end(folder: Path) -> None:
    for name in ("stage", "beside"):
        number = int((folder / name).read_text())
        wait_until(lambda number=number: not is_alive(number), f"the end of the {name}")
