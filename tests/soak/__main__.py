"""The long run: `python -m tests.soak --minutes 30 --plot FILE.svg`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.judge import MEMORY_BAR, Verdict, judge
from tests.soak.plot import draw_plot
from tests.soak.run import run_soak
from tests.soak.samples import read_samples


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    parser.add_argument("--warm-up-minutes", type=float, help="what is not judged; without it, a third of the time")
    parser.add_argument("--memory-bar", type=float, default=MEMORY_BAR, help="MB an hour that memory may grow by")
    parser.add_argument("--step-ms", type=float, default=1.0, help="milliseconds a step of an environment takes")
    parser.add_argument("--folder", type=Path, help="for logs, runs and samples.csv; without it, a temporary one")
    parser.add_argument("--plot", type=Path, help="draw into this svg or png; needs matplotlib, see make peers")
    parser.add_argument("--again", type=Path, help="judge and draw this samples.csv, instead of running")
    return parser


def main() -> int:
    """Runs, judges and draws; returns 1 if anything grew, ended or stood still."""
    options = make_parser().parse_args()
    seconds = 60 * options.minutes
    warm_up_s = seconds / 3 if options.warm_up_minutes is None else 60 * options.warm_up_minutes
    wrong: list[str] = []
    if options.again is not None:
        samples = read_samples(options.again)
    else:
        folder = options.folder or Path(tempfile.mkdtemp(prefix="rollcast-soak-"))
        folder.mkdir(parents=True, exist_ok=True)
        samples, wrong = run_soak(
            folder, folder / "samples.csv", seconds=seconds, warm_up_s=warm_up_s, step_s=options.step_ms / 1000
        )
        sys.stdout.write(f"logs, runs and samples.csv are in {folder}\n")
    verdicts = judge(samples, warm_up_s=warm_up_s, memory_bar=options.memory_bar)
    sys.stdout.write(table(verdicts))
    wrong += [f"{verdict.process}: {', '.join(verdict.growing)}" for verdict in verdicts if verdict.growing]
    if not verdicts:
        wrong.append("no process was there from the end of the warm-up to the end")
    for line in wrong:
        sys.stdout.write(f"NOT FLAT: {line}\n")
    if options.plot is not None:
        draw_plot(options.plot, samples, warm_up_s=warm_up_s, title=f"a soak of {options.minutes:g} minutes")
    return 1 if wrong else 0


def table(verdicts: list[Verdict]) -> str:
    """In Markdown, a line a process."""
    lines = [
        "| process | MB after warm-up | MB at the end | MB an hour [95 %] | threads | descriptors | children |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for verdict in verdicts:
        counts = " | ".join(f"{first} -> {last}" for first, last in verdict.counts.values())
        lines.append(
            f"| {verdict.process} | {verdict.first_mb:.1f} | {verdict.last_mb:.1f} | {verdict.memory} | {counts} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
