"""A process ends as Python ends it, except that nothing is torn down."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREPARE = "import atexit, sys, threading, time; from rollcast.services.process.interrupts import run_to_end;"


def run(program: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PREPARE + program],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    ("command", "exit_code", "stderr"),
    [
        ("lambda: 3", 3, ""),
        ("sys.exit", 0, ""),
        ("lambda: sys.exit(4)", 4, ""),
        ("lambda: sys.exit('no')", 1, "no\n"),
        ("lambda: exec('raise KeyboardInterrupt')", 130, ""),
    ],
)
def test_the_exit_code_is_the_commands(command: str, exit_code: int, stderr: str):
    done = run(f"run_to_end({command})")
    assert (done.returncode, done.stderr) == (exit_code, stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_outputs_that_cannot_be_written_change_no_exit_code_of_an_error(closed: str):
    program = f"{PREPARE}run_to_end(lambda: sys.exit('no'))"
    assert (
        subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program], check=False).returncode
        == 1
    )


def test_no_file_takes_the_place_of_a_closed_output():
    program = f"{PREPARE}import os; run_to_end(lambda: os.open(os.devnull, os.O_RDONLY))"
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program], check=False)
    assert done.returncode >= 3


def test_an_unforeseen_error_is_shown():
    done = run("run_to_end(lambda: 1 / 0)")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_threads_are_waited_for_and_exit_functions_run_and_all_is_printed():
    done = run(
        "atexit.register(print, 'at exit');"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start();"
        "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start();"
        "run_to_end(lambda: print('command') or 0)"
    )
    assert (done.returncode, done.stdout) == (0, "command\nthread\nat exit\n")


def test_output_that_cannot_be_written_is_a_failure():
    with Path("/dev/full").open("w") as full:
        assert (
            run(
                "run_to_end(lambda: print('lost') or 0)", stdout=full, env=os.environ | {"PYTHONUNBUFFERED": ""}
            ).returncode
            == 120
        )
