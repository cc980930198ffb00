"""Runs the matrix: `python -m tests.matrix --sample 500 --seed 3`.

First the cases in which every two choices stand together, and one for each reason to refuse; then random ones, most of
which train. A failure is made plainer and printed with the command that repeats it.
"""

import argparse
import contextlib
import faulthandler
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Final

from tests.matrix import axes
from tests.matrix.axes import Case
from tests.matrix.covering import covering, goes_with, refused_for, simpler
from tests.matrix.rules import RULES
from tests.matrix.running import CaseFailedError, command, judge
from tests.matrix.table import PAGE, page

# A case takes a second, with processes three; so long only one that hangs.
_DEADLINE_S: Final = 120
_PROCESSES: Final = 2
# Of ten random cases so many are drawn until nothing refuses them.
_TRAINING_OF_TEN: Final = 8
_MOST_SIMPLER: Final = 60


@dataclass(frozen=True, slots=True)
class Report:
    """The end of a case: a problem, or the line with which it was refused, or neither: it trained."""

    case: Case
    problem: str
    refusal: str
    seconds: float


class _HungError(BaseException):
    """A case did not end; nothing on the way catches it."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs the cases; returns 1 if any has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--sample", type=int, default=500, help="number of random cases after the pairs")
    parser.add_argument("--seed", type=int, default=0, help="decides the random cases")
    parser.add_argument("--no-pairs", action="store_true", help="random cases only")
    parser.add_argument("--processes", type=int, default=_PROCESSES, help="cases at once")
    parser.add_argument("--deadline", type=int, default=_DEADLINE_S, help="seconds that a case may take")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, the device of every learner")
    parser.add_argument("--record", action="store_true", help="write the tables of the documentation, and run nothing")
    options = parser.parse_args(words)
    if options.record:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    cases = [] if options.no_pairs else [*covering(), *refused()]
    cases += sampled(options.sample, random.Random(options.seed))
    cases = [{**case, "device": options.device} for case in cases]
    _print(f"{len(cases)} of {axes.n_combinations():.1e} combinations")
    reports = []
    for report in _run_all(cases, options.processes, options.deadline):
        reports.append(report)
        if report.problem:
            _print(f"FAILED: {command(report.case)}\n  {report.problem}\n")
    _print(table(reports))
    return int(any(report.problem for report in reports))


def refused() -> list[Case]:
    """Returns a plain case for each reason to refuse."""
    generator = random.Random(0)
    return [refused_for(rule, generator) for rule in RULES]


def sampled(n: int, generator: random.Random) -> list[Case]:
    """Returns random cases."""
    cases: list[Case] = []
    while len(cases) < n:
        case = axes.drawn({}, generator)
        if generator.randrange(10) < _TRAINING_OF_TEN:
            firsts = {name: case[name] for name in ("algorithm", "env.agents")}
            case = _valid(case, firsts, generator)
        cases.append(case)
    return cases


def _valid(case: Case, firsts: Case, generator: random.Random) -> Case:
    """Returns a case that is not refused, with as many of the random choices as go together."""
    chosen = dict(firsts)
    found = goes_with(chosen)
    if found is None:
        return case
    for name in generator.sample(list(case), len(case)):
        more = {**chosen, name: case[name]}
        if (other := goes_with(more)) is not None:
            chosen, found = more, other
    return found


def table(reports: Sequence[Report]) -> str:
    """Returns how many cases of each algorithm trained, were refused and failed."""
    counts = Counter((str(report.case["algorithm"]), _kind(report)) for report in reports)
    kinds = ("trained", "refused", "failed")
    lines = ["| algorithm | trained | refused | failed |", "|---|---|---|---|"]
    for algorithm in axes.BY_NAME["algorithm"].values:
        lines.append(f"| {algorithm} | {' | '.join(str(counts[str(algorithm), kind]) for kind in kinds)} |")
    totals = [sum(n for (_, of), n in counts.items() if of == kind) for kind in kinds]
    seconds = sum(report.seconds for report in reports)
    lines.append(f"| all | {' | '.join(map(str, totals))} |")
    return "\n".join([*lines, f"{seconds:.0f} s, {seconds / max(len(reports), 1):.2f} s a case"])


def _kind(report: Report) -> str:
    return "failed" if report.problem else "refused" if report.refusal else "trained"


def _run_all(cases: Sequence[Case], n_processes: int, deadline_s: int) -> Iterator[Report]:
    waiting = list(enumerate(cases))
    while waiting:
        left = dict(waiting)
        with ProcessPoolExecutor(n_processes, get_context("spawn"), initializer=_prepare) as pool:
            futures = {pool.submit(run_alone, case, deadline_s): index for index, case in waiting}
            try:
                for future in as_completed(futures):
                    report = future.result()
                    del left[futures[future]]
                    yield report
            except BrokenProcessPool:
                # Cases begin in their order, so it is the first, or one that began beside it.
                case = left.pop(next(iter(left)))
                yield Report(case, f"its process ended, or that of the next {n_processes - 1} cases", "", 0.0)
        waiting = list(left.items())


def _prepare() -> None:
    """Prepares a process: warnings are errors, as in tests, and what actors write goes nowhere."""
    # CUDA starts once in a process, and deterministic cases come after others.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _on_alarm)
    sys.stderr = os.fdopen(os.dup(2), "w")
    faulthandler.enable(sys.stderr)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def _on_alarm(_signal: int, frame: FrameType | None) -> None:
    raise _HungError("".join(traceback.format_stack(frame)))


def run_alone(case: Case, deadline_s: int) -> Report:
    """Runs a case within its deadline; one that fails is made plainer."""
    report = _report(case, deadline_s)
    if report.problem and not report.problem.startswith("it hangs"):
        left = iter(range(_MOST_SIMPLER))

        def still(other: Case) -> bool:
            return next(left, None) is not None and _report(other, deadline_s).problem[:60] == report.problem[:60]

        plainer = _report(simpler(case, still), deadline_s)
        report = plainer if plainer.problem else report
    return report


def _report(case: Case, deadline_s: int) -> Report:
    signal.alarm(deadline_s)
    faulthandler.dump_traceback_later(3 * deadline_s, exit=True, file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="rollcast-matrix-") as folder:
            outcome = judge(case, Path(folder))
        return Report(case, "", outcome.refusal, outcome.seconds)
    except CaseFailedError as error:
        return Report(case, str(error), "", 0.0)
    except _HungError as error:
        return Report(case, f"it hangs: {error}", "", float(deadline_s))
    except Exception:  # noqa: BLE001 - whatever it is, it is no error of ours
        return Report(case, traceback.format_exc(), "", 0.0)
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def _print(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
