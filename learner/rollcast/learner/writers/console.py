"""Shows training in the terminal: a live view, or a plain line every few seconds without a terminal."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollcast.services.process.periodic import PeriodicThread
from rollcast.services.process.printable import printable
from rollcast.services.status.numbers import count, decimal, percent, rate, short_clock
from rollcast.services.status.status import EvaluationStatus, LearnerStatus, Phase

# Findings about training in the view; `rollcast doctor` has all of them.
_MAX_FINDINGS = 3
# Rows of statistics in the view; the metrics files have all of them.
_MAX_STATISTICS = 12
_BAR_WIDTH = 52

_PHASE_STYLES = {
    Phase.STARTING: "yellow",
    Phase.TRAINING: "green",
    Phase.PAUSED: "yellow",
    Phase.STOPPING: "yellow",
    Phase.FINISHED: "bold green",
}


def print_above(console: Console, line: str) -> None:
    """Prints a line without wrapping it at the width of the terminal, above the view if the console has one."""
    console.print(printable(line), soft_wrap=True, highlight=False, markup=False, emoji=False)


class ConsoleView:
    """A view of training, shown during the body of a `with` statement.

        with ConsoleView(control.status, console, stop_return=475.0) as view:
            trainer.run()

    In a terminal, the view is redrawn in place. After the `with`, even after an exception, the view stays, with the
    cursor below it. Without a terminal, it prints a line with the time of day every `plain_interval_s`. Without
    progress, the interval between lines doubles. Other text on the same console appears above the view.

    A separate thread, `rollcast-console`, calls `status` and draws. At the end, the `with` joins the thread, calls
    `status` and draws once more.
    """

    def __init__(
        self,
        status: Callable[[], LearnerStatus],
        console: Console,
        *,
        stop_return: float | None = None,
        stops_on_evaluation: bool = False,
        total_steps: int | None = None,
        statistics: Callable[[], Mapping[str, float]] = dict,
        refresh_interval_s: float = 0.5,
        plain_interval_s: float = 5.0,
    ) -> None:
        """Prepares the view; the `with` shows it.

        Args:
            status: Returns the status of training; does not block.
            console: The console of the command line.
            stop_return: The mean return that ends training; None: no goal.
            stops_on_evaluation: True if `stop_return` applies to evaluations.
            total_steps: The number of environment steps that ends training; None: no goal.
            statistics: Returns the statistics of events by name; does not block.
            refresh_interval_s: Seconds between two drawings in a terminal, above 0. Each drawing takes time from the
                interpreter that trains.
            plain_interval_s: Seconds between two lines without a terminal, above 0.
        """
        self._status = status
        self._console = console
        self._stop_return = stop_return
        self._stops_on_evaluation = stops_on_evaluation
        self._total_steps = total_steps
        self._statistics = statistics
        self._interval_s = refresh_interval_s if console.is_terminal else plain_interval_s
        self._live: Live | None = None
        self._first_return: float | None = None
        # The rules whose findings were printed already: each is printed once.
        self._found: set[str] = set()
        # The content of the last line, its time by `time.monotonic`, and the seconds between the last two lines.
        self._told: tuple[object, ...] = ()
        self._told_at = self._told_after_s = 0.0
        self._thread: PeriodicThread | None = None

    def __enter__(self) -> "ConsoleView":
        if self._console.is_terminal:
            # Only `show` draws, whole screens at a time, so that nothing flickers.
            # Log lines appear above the view, unless `2>` sends them elsewhere.
            self._live = Live(
                console=self._console, auto_refresh=False, transient=False, redirect_stderr=sys.stderr.isatty()
            )
            self._live.start()
        self._thread = PeriodicThread(self._show_news, self._interval_s, name="console")
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        try:
            self.show(self._status())
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def show(self, status: LearnerStatus) -> None:
        """Draws a status now, in place or as a line.

        Args:
            status: The status to draw; it fits into 80 columns.
        """
        if self._live is not None:
            self._live.update(self._screen(status), refresh=True)
        else:
            for line in self._lines(status):
                print_above(self._console, line)

    def _show_news(self) -> None:
        status = self._status()
        if self._live is not None or self._is_news(status):
            self.show(status)

    def _is_news(self, status: LearnerStatus) -> bool:
        """Returns whether the status has changed, or a line without a change is due."""
        evaluations = 0 if status.evaluation is None else status.evaluation.evaluations
        told = (status.phase, status.env_steps, status.updates, status.actors_alive, status.waiting_for, evaluations)
        now = time.monotonic()
        is_new, passed_s = told != self._told, now - self._told_at
        if not is_new and passed_s < 2 * self._told_after_s:
            return False
        self._told, self._told_at = told, now
        self._told_after_s = self._interval_s if is_new else passed_s
        return True

    def _lines(self, status: LearnerStatus) -> Iterator[str]:
        yield self._line(status)
        statistics = _shown(self._statistics())
        if statistics:
            yield "  ".join(f"{name} {value}".rstrip() for name, value in statistics)
        for finding in status.findings:
            if finding.rule not in self._found:
                self._found.add(finding.rule)
                yield f"learning: {finding.sentence}"

    @staticmethod
    def _line(status: LearnerStatus) -> str:
        # shorter waits are normal: the trainer waits for a batch between updates
        waiting = f"  {_waiting(status)}" if status.waiting_for and status.waiting_s >= 1 else ""
        mean_return = decimal(status.mean_return)
        if status.evaluation is not None:
            mean_return += f"  {_evaluation(status.evaluation)}"
        return (
            f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {short_clock(status.seconds)} {status.phase.name.lower()}  "
            f"return {mean_return}  "
            f"{count(status.env_steps)} steps {rate(status.env_steps_per_second)}  "
            f"updates {rate(status.updates_per_second)}  "
            f"policy {status.policy_version} lag {status.policy_lag_mean:.1f}/{status.policy_lag_max}  "
            f"queue {status.queue_size}/{status.queue_capacity}  actors {_actors(status)}{waiting}"
        )

    def _screen(self, status: LearnerStatus) -> RenderableType:
        head = Text.assemble(
            ("rollcast", "bold"),
            f"  {printable(status.algorithm)}  " if status.algorithm else "  ",
            (status.phase.name.lower(), _PHASE_STYLES[status.phase]),
            f"  {short_clock(status.seconds)}",
        )
        own = _own_statistics(self._statistics())
        findings = [Text(printable(found.sentence), "yellow") for found in status.findings[:_MAX_FINDINGS]]
        return Group(head, _figures(status), *own, *self._goals(status), *findings, _footer(status))

    def _goals(self, status: LearnerStatus) -> list[RenderableType]:
        goals: list[tuple[str, float, float, float, str]] = []
        mean_return = _evaluated_return(status) if self._stops_on_evaluation else status.mean_return
        if self._first_return is None:
            self._first_return = mean_return
        if self._stop_return is not None:
            # A return of zero means nothing in general, so the bar begins at the first return.
            start = self._stop_return if self._first_return is None else self._first_return
            reached = -math.inf if mean_return is None else mean_return
            goals.append(("to return", start, reached, self._stop_return, f"{self._stop_return:g}"))
        if self._total_steps is not None:
            goals.append(("to steps", 0.0, float(status.env_steps), float(self._total_steps), f"{self._total_steps:,}"))
        rows: list[RenderableType] = []
        for name, start, reached, goal, label in goals:
            row = Table.grid(padding=(0, 1))
            row.add_column(width=11)
            row.add_column(width=_BAR_WIDTH)
            row.add_column(width=13, justify="right")
            fraction = (
                float(reached >= goal) if goal <= start else min(max((reached - start) / (goal - start), 0.0), 1.0)
            )
            row.add_row(Text(name, "dim"), _bar(fraction), label)
            rows.append(row)
        return rows


def _bar(fraction: float) -> Text:
    """Returns a bar whose length is readable without colours, too."""
    done = int(_BAR_WIDTH * fraction)
    return Text.assemble(("#" * done, "green"), ("." * (_BAR_WIDTH - done), "dim"))


def _figures(status: LearnerStatus) -> Table:
    # The columns have fixed widths, so that growing numbers do not move their neighbours.
    table = Table.grid(padding=(0, 1))
    for name_width, value_width in ((9, 13), (9, 11), (8, 9)):
        table.add_column(width=name_width, no_wrap=True, style="dim")
        table.add_column(width=value_width, no_wrap=True, justify="right")
        table.add_column(width=2)
    queue = f"{status.queue_size}/{status.queue_capacity}"
    actors_style = "yellow" if status.actors_alive < status.actors_expected else ""
    rows: tuple[tuple[tuple[str, str | Text], ...], ...] = (
        (
            ("return", Text(decimal(status.mean_return), "bold")),
            ("episodes", count(status.episodes)),
            ("actors", Text(_actors(status), actors_style)),
        ),
        (
            ("env steps", count(status.env_steps)),
            ("speed", rate(status.env_steps_per_second)),
            ("queue", queue),
        ),
        (
            ("updates", count(status.updates)),
            ("speed", rate(status.updates_per_second)),
            ("waited", percent(status.waiting_fraction)),
        ),
        (
            ("policy", f"v{status.policy_version}"),
            ("lag mean", f"{status.policy_lag_mean:.2f}"),
            ("lag max", f"{status.policy_lag_max}"),
        ),
    )
    if status.evaluation is not None:
        evaluation = status.evaluation
        has_any = evaluation.evaluations > 0
        style = "" if evaluation.evaluators_alive else "yellow"
        rows += (
            (
                ("eval", Text(decimal(_evaluated_return(status)), "bold")),
                ("best", decimal(evaluation.best_mean_return if has_any else None)),
                ("evals", Text(f"{evaluation.evaluations:,}" if evaluation.evaluators_alive else "none runs", style)),
            ),
        )
    for row in rows:
        table.add_row(*(cell for name, value in row for cell in (name, value, "")))
    return table


def _own_statistics(statistics: Mapping[str, float]) -> list[RenderableType]:
    rows: list[RenderableType] = []
    for name, value in _shown(statistics):
        row = Table.grid(padding=(0, 1))
        row.add_column(width=64, no_wrap=True, overflow="ellipsis", style="dim")
        row.add_column(width=13, no_wrap=True, justify="right")
        row.add_row(Text(printable(name)), value)
        rows.append(row)
    return rows


def _shown(statistics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Returns the first `_MAX_STATISTICS` names and values, and a row with the number of the others."""
    shown = [
        (name, f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}")
        for name, value in sorted(statistics.items())[:_MAX_STATISTICS]
    ]
    left = len(statistics) - len(shown)
    return [*shown, (f"and {left} more in the metrics", "")] if left else shown


def _footer(status: LearnerStatus) -> Text:
    # Always one line, because a view that changes its height jumps.
    problem = _waiting(status) or _evaluation_problem(status.evaluation)
    text = Text(printable(problem or status.run_dir), "yellow" if problem else "dim")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _waiting(status: LearnerStatus) -> str:
    return f"waiting {status.waiting_s:.0f} s for {status.waiting_for}" if status.waiting_for else ""


def _evaluated_return(status: LearnerStatus) -> float | None:
    evaluation = status.evaluation
    return evaluation.mean_return if evaluation is not None and evaluation.evaluations else None


def _evaluation(evaluation: EvaluationStatus) -> str:
    if not evaluation.evaluations:
        text = "eval -"
    else:
        half_width = (evaluation.ci_high - evaluation.ci_low) / 2
        best = decimal(evaluation.best_mean_return)
        text = f"eval {decimal(evaluation.mean_return)} +/- {decimal(half_width)} best {best}"
    problem = _evaluation_problem(evaluation)
    return f"{text} ({problem})" if problem else text


def _evaluation_problem(evaluation: EvaluationStatus | None) -> str:
    if evaluation is None or not evaluation.last_error:
        return ""
    return f"the evaluator failed: {evaluation.last_error}"


def _actors(status: LearnerStatus) -> str:
    return f"{status.actors_alive}/{status.actors_expected}" if status.actors_expected else str(status.actors_alive)
