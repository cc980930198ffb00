"""Runs the stages of `make test`. One that fails does not hide the others.

`python -m tests.stages --at-once lint types -- pytest speed`: each stage is a target of the Makefile. Those that are at
once run two at a time beside the others, which leave some processor time idle. A stage of pytest leaves a report,
`build/tests/STAGE.xml`, or several, `STAGE-*.xml`. A stage without a report counts as one. A stage that cannot run
here, or not all of it, ends well and leaves the reason in `STAGE.skipped`.

The last line is "7165 passed, 0 failed, 3 skipped". The lines before it name what failed and why something was skipped.
"""

import argparse
import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

# The first process of a stage and of its group. Its stdin ends with the runner, even by SIGKILL; then the group ends.
# Its reader is a grandchild: after Ctrl-C, make may wait for a child, even for one that is no job of its own.
_STAGE = 'exec 3<&0 </dev/null; ((read _; kill 0) <&3 >/dev/null 2>&1 &); exec "$@" 3<&-'
# Of the Makefile in the current folder.
REPORTS = Path("build/tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a stage.

    Attributes:
        stage: Its name.
        seconds: The time it took.
        n_passed: Its tests that passed.
        failed: The names of its tests that failed; its own name if no test tells why the stage failed.
        skipped: The reason of each skip.
    """

    stage: str
    seconds: float
    n_passed: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]


class Runner:
    """Runs stages until Ctrl-C, which `interrupt` hears of, or another signal, of which `end` hears.

    Each stage is a group of its own. So it ends as a whole, whichever of `make` and this process got a signal alone.
    """

    def __init__(self) -> None:
        self.is_interrupted = False
        self._beside: list[subprocess.Popen[str]] = []
        self._others: list[subprocess.Popen[str]] = []

    def interrupt(self, *_: object) -> None:
        """Ends the stages beside the others, and passes on Ctrl-C to the others, which end in their own time."""
        self.is_interrupted = True
        _signal(self._beside, signal.SIGTERM)
        _signal(self._others, signal.SIGINT)

    def end(self, number: int, _: object) -> None:
        """Ends all stages, then this process by the signal."""
        _signal([*self._beside, *self._others], signal.SIGTERM)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def run(self, stages: Sequence[str], *, are_beside: bool = False) -> list[Result]:
        """Runs stages, each after the last, until Ctrl-C, and returns their results."""
        return [self._run(stage, is_beside=are_beside) for stage in stages if not self.is_interrupted]

    def _run(self, stage: str, *, is_beside: bool) -> Result:
        """Runs a stage and reads its reports.

        Args:
            stage: A target of the Makefile.
            is_beside: True: other stages run at the same time and go first. The stage's output is printed in one piece,
                at its end.
        """
        for left in _reports(stage):
            left.unlink()
        begun, output = time.monotonic(), subprocess.PIPE if is_beside else None
        watched, held = os.pipe()
        nice = ("nice", "-n", "10") if is_beside else ()
        process = subprocess.Popen(
            ["sh", "-c", _STAGE, "sh", *nice, "make", "--no-print-directory", stage],
            stdin=watched,
            stdout=output,
            stderr=output and subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        (self._beside if is_beside else self._others).append(process)
        if self.is_interrupted:  # while it was started, too late for it to hear of
            _signal([process], signal.SIGTERM if is_beside else signal.SIGINT)
        said, _ = process.communicate()
        for end in (watched, held):
            os.close(end)
        seconds, reports = time.monotonic() - begun, _reports(stage)
        cannot_run = bool(reports) and all(report.suffix == ".skipped" for report in reports)
        outcome = "FAILED" if process.returncode else "skipped" if cannot_run else "passed"
        # in one write: another stage may end at the same moment
        print(f"{said or ''}== {stage}: {outcome}, {seconds:.0f} s\n", end="", flush=True)  # noqa: T201 - for people
        return _result(stage, seconds, process.returncode, reports)


def _signal(stages: Sequence[subprocess.Popen[str]], number: int) -> None:
    """Sends a signal to all processes of the stages that have not ended."""
    for process in stages:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, number)


def _wait(futures: Sequence[Future[list[Result]]]) -> None:
    """Waits until all are done. Handlers run at once; a plain wait misses a signal that comes just before it."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for future in futures:
        future.add_done_callback(lambda _: os.write(wake, b"."))
    while not all(future.done() for future in futures):
        os.read(woken, 1)


def _end_with_make() -> None:
    """Has this process end by SIGTERM when the `make` that started it has ended, even by SIGKILL."""
    if "MAKELEVEL" not in os.environ or not hasattr(os, "pidfd_open"):
        return
    make = os.pidfd_open(os.getppid())

    def watch() -> None:
        select.select([make], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-make", daemon=True).start()


def _reports(stage: str) -> list[Path]:
    patterns = (f"{stage}.xml", f"{stage}-*.xml", f"{stage}.skipped")
    return [path for pattern in patterns for path in sorted(REPORTS.glob(pattern))]


def _result(stage: str, seconds: float, code: int, reports: Sequence[Path]) -> Result:
    passed: set[str] = set()
    failed: set[str] = set()
    skipped: list[str] = []
    for report in reports:
        if report.suffix == ".skipped":
            skipped.append(f"{stage}: {report.read_text().strip()}")
            continue
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except ElementTree.ParseError as error:
            failed.add(f"{stage}: {report} is damaged: {error}")
            continue
        for case in cases:
            name = f"{report.stem}: {case.get('classname')}::{case.get('name')}"
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed.add(name)
            elif skip is not None:
                skipped.append(skip.get("message") or "")
            else:
                passed.add(name)
    if code != 0 and not failed:
        failed.add(stage)
    n_passed = len(passed - failed) if reports else int(code == 0)
    return Result(
        stage=stage,
        seconds=seconds,
        n_passed=n_passed,
        failed=tuple(sorted(failed)),
        skipped=tuple(skipped),
    )


def summary(results: Sequence[Result]) -> list[str]:
    """Returns the lines at the end: times, names of what failed, reasons of skips, numbers."""
    failed = [name for result in results for name in result.failed]
    reasons = Counter(reason for result in results for reason in result.skipped)
    n_passed, n_skipped = sum(result.n_passed for result in results), reasons.total()
    stages = ", ".join(dict.fromkeys(name.split(":")[0] for name in failed))
    why = "; ".join(f"{n}: {reason}" for reason, n in reasons.most_common())
    told = f"passed {n_passed}"
    told += f"; failed {len(failed)} ({stages})" if failed else "; failed none"
    told += f"; skipped {n_skipped} ({why})" if reasons else "; skipped none"
    return [
        "stages: " + ", ".join(f"{result.stage} {result.seconds:.0f} s" for result in results),
        *(f"failed: {name}" for name in failed),
        told,
        f"{n_passed} passed, {len(failed)} failed, {n_skipped} skipped",
    ]


def main(arguments: Sequence[str]) -> int:
    """Runs all stages and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", nargs="*", default=[], metavar="STAGE", help="stages that use one core each")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="the stages beside them, one after the other")
    given = parser.parse_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    runner = Runner()
    signal.signal(signal.SIGINT, runner.interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, runner.end)
    _end_with_make()
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(1) as in_turn:
        futures = [pool.submit(runner.run, [stage], are_beside=True) for stage in given.at_once]
        futures.append(in_turn.submit(runner.run, given.stages))
        _wait(futures)
    results = list(itertools.chain.from_iterable(future.result() for future in futures))
    print("\n" + "\n".join(summary(results)), flush=True)  # noqa: T201 - for people
    if runner.is_interrupted:
        return 128 + signal.SIGINT
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
