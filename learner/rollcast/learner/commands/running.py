"""Runs training for `train` and `learner`, with signals, the live view, the summary and the exit code."""

import contextlib
import shlex
import signal
from typing import IO

from rich.console import Console

from rollcast.learner.checkpoints.listing import saved_state_of
from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.training.summary import TrainingSummary
from rollcast.learner.training.training_run import TrainingRun
from rollcast.learner.writers.console import ConsoleView
from rollcast.services.process.installation import typed_again
from rollcast.services.status.numbers import decimal
from rollcast.services.status.status import ActorState


def run_and_report(
    run: TrainingRun,
    settings: LearnerSettings,
    console: Console,
    *,
    serves: bool = False,
    is_shown: bool = True,
    plays_here: bool = True,
    resume_with: str = "",
) -> int:
    """Trains with a live view, prints the summary, and returns the exit code: 0, or 130 after Ctrl-C.

    Ctrl-C and SIGTERM end training, and end a long update early; see `Algorithm.end_updates_early`. A second Ctrl-C
    ends training at once.

    Args:
        run: The training run.
        settings: The settings of the run.
        console: The console for the view and the summary.
        serves: True: after training, serve the last policy until the run is stopped.
        is_shown: False: no view and no summary, because another rank shows them.
        plays_here: False: environments dial in, so `evaluate` cannot make one.
        resume_with: The command that resumes the run, such as `train`; empty: the summary names none.
    """
    view = ConsoleView(
        run.control.status,
        console,
        stop_return=run.stop_return,
        stops_on_evaluation=run.stops_on_evaluation,
        total_steps=settings.total_steps,
        statistics=run.trainer.statistics,
    )
    reported = False

    def report(summary: TrainingSummary) -> None:
        nonlocal reported
        shown.close()
        if not reported and is_shown:
            program = typed_again(settings.env_id, settings.network, settings.algorithm)
            print_summary(console.file, summary, run, program, plays_here=plays_here, resume_with=resume_with)
            if settings.summary_json is not None:
                summary.write_json(settings.summary_json)
        reported = True

    def serve(summary: TrainingSummary) -> None:
        report(summary)
        with run.run_directory.serving() if is_shown else contextlib.nullcontext():
            print_line(
                console.file, f"training has ended: serving its last policy at {settings.address} until it is stopped"
            )
            run.control.wait_for_stop()

    def stop() -> None:
        # after `docker-compose restart learner`, the actors continue with the next learner
        run.actors.leave_waiting()
        run.control.request_stop()

    with (
        stop_on_signals(stop, run.actors.cancel_waits) as received,
        contextlib.ExitStack() as at_the_end,
        # closes the view before a finished learner serves
        contextlib.ExitStack() as shown,
    ):
        # again, because the second Ctrl-C may have interrupted the first stop
        at_the_end.callback(run.actors.stop)
        if is_shown:
            shown.enter_context(view)
        report(run.train(serve if serves else None))
        if is_shown and run.actors.leaves_waiting and _has_lost_actors(run):
            print_line(
                console.file,
                "its actors wait for the next learner, each for its --reconnect-timeout-s (600 s if not set): "
                "continue with --resume, or end them with Ctrl-C or SIGTERM",
            )
    return 130 if signal.SIGINT in received else 0


def _has_lost_actors(run: TrainingRun) -> bool:
    return any(actor.state in (ActorState.JOINED, ActorState.LOST) for actor in run.actors.actor_infos)


def print_summary(
    output: IO[str],
    summary: TrainingSummary,
    run: TrainingRun,
    program: str,
    *,
    plays_here: bool = True,
    resume_with: str = "",
) -> None:
    """Prints the results of training, the run's folder, and the commands that use its policy or continue a stopped run.

    Args:
        output: The output.
        summary: The results.
        run: The run.
        program: The command name of rollcast.
        plays_here: False: `evaluate` cannot make the environment.
        resume_with: As in `run_and_report`.
    """
    mean_return = "no episode has ended" if summary.mean_return is None else decimal(summary.mean_return)
    evaluated = "none has ended"
    if summary.eval_mean_return is not None and summary.best_eval_mean_return is not None:
        evaluated = f"{decimal(summary.eval_mean_return)}, best of {summary.evaluations:,}: "
        evaluated += decimal(summary.best_eval_mean_return)
    if run.stop_return is not None:
        solved = f"({'solved' if summary.solved else 'not solved'}: {run.stop_return:g}"
        if run.stops_on_evaluation:
            evaluated += f" {solved})"
        else:
            mean_return += f" {solved} over 100 episodes)"
    rows = [("mean return", mean_return)]
    if summary.evaluations or run.stops_on_evaluation:
        rows.append(("evaluation", evaluated))
    folder = run.run_directory
    # A run that is stopped before its first update has no policy to look at.
    label, command = ("look at it", "evaluate") if plays_here else ("serve it", "serve-policy")
    path = shlex.quote(str(folder.path))
    further = []
    if resume_with and saved_state_of(folder) == "stopped":
        further.append(("continue it", f"{program} {resume_with} --resume {path}"))
    if folder.policy_path("last").is_file():
        further.append((label, f"{program} {command} {path}"))
    for name, value in (
        *rows,
        ("env steps", f"{summary.env_steps:,} in {summary.seconds:.1f} s ({summary.env_steps_per_second:,.0f}/s)"),
        ("updates", f"{summary.updates:,}"),
        (
            "policy",
            f"version {summary.policy_version:,}, lag of the run: mean {summary.policy_lag_mean:.2f}, "
            f"max {summary.policy_lag_max}",
        ),
        ("run directory", str(folder.path)),
        *further,
    ):
        # no table, which would wrap the command at 80 columns, so that it could not be copied
        print_line(output, f"{name:<15}{value}")
