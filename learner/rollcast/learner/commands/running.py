"""What `train` and `learner` do around a run: signals, the live view, the summary, the exit code."""

import contextlib
import shlex
import signal

from rich.console import Console

from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.training.trainer import TrainingSummary
from rollcast.learner.training.training_run import TrainingRun
from rollcast.learner.writers.console import ConsoleView
from rollcast.services.process.installation import typed


def run_and_report(run: TrainingRun, settings: LearnerSettings, console: Console, *, serves: bool = False) -> int:
    """Trains with a live view, prints the summary, and returns the exit code: 0, or 130 after Ctrl-C.

    Ctrl-C and SIGTERM end training after the running update; a second Ctrl-C ends it at once.

    Args:
        run: What is to be trained.
        settings: What was asked for.
        console: Where the view and the summary go.
        serves: When training has reached its end, the last policy is served until the run is stopped.
    """
    view = ConsoleView(
        run.control.status,
        console,
        stop_return=run.stop_return,
        total_steps=settings.total_steps,
        statistics=run.trainer.statistics,
    )
    reported = False

    def report(summary: TrainingSummary) -> None:
        nonlocal reported
        shown.close()
        if not reported:
            print_summary(console, summary, run)
            if settings.summary_json is not None:
                summary.write_json(settings.summary_json)
        reported = True

    def serve(summary: TrainingSummary) -> None:
        report(summary)
        print_line(console, f"training has ended: serving its last policy at {settings.address} until it is stopped")
        run.control.wait_for_stop()

    def stop() -> None:
        # `docker-compose restart learner`: the actors stay, and go on with the learner that comes next
        run.actors.leave_waiting()
        run.control.request_stop()

    with (
        stop_on_signals(stop, run.actors.hurry) as received,
        contextlib.ExitStack() as at_the_end,
        # closed before a finished learner serves
        contextlib.ExitStack() as shown,
    ):
        # the second time, where the second Ctrl-C has come in the middle of the first
        at_the_end.callback(run.actors.stop)
        shown.enter_context(view)
        report(run.train(serve if serves else None))
    return 130 if signal.SIGINT in received else 0


def print_summary(console: Console, summary: TrainingSummary, run: TrainingRun) -> None:
    """Prints how training went and where to find it."""
    mean_return = "no episode has ended" if summary.mean_return is None else f"{summary.mean_return:.1f}"
    if run.stop_return is not None:
        mean_return += f" ({'solved' if summary.solved else 'not solved'}: {run.stop_return:g} over 100 episodes)"
    for name, value in (
        ("mean return", mean_return),
        ("env steps", f"{summary.env_steps:,} in {summary.seconds:.1f} s ({summary.env_steps_per_second:,.0f}/s)"),
        ("updates", f"{summary.updates:,}"),
        (
            "policy",
            f"version {summary.policy_version:,}, lag mean {summary.policy_lag_mean:.2f}, max {summary.policy_lag_max}",
        ),
        ("run directory", str(run.run_directory.path)),
        ("look at it", f"{typed('rollcast')} evaluate {shlex.quote(str(run.run_directory.path))}"),
    ):
        # no table: it would fold the command that is meant to be copied, where the output is a log of 80 columns
        print_line(console, f"{name:<15}{value}")
