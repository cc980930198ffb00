"""Opens the folder of a training run: creates a new one, or finds the checkpoint of a resumed run."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from rollcast.learner.algorithms.defaults import groups_of, short_name
from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.checkpoints.resuming import RUNS, changes_bits, newest_checkpoint, settings_changes
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.services.errors import ConfigurationError

# Announced if a run without changed settings would be bit-identical to an uninterrupted one.
_OTHER_BITS = (
    "from now on, the run is not bit-identical to one without the change, or to one with these settings from the start"
)


def default_run_dir(settings: LearnerSettings) -> Path:
    """Returns `runs/ENV-ALGORITHM-seedN-TIME-PID`."""
    name = settings.env_id.replace("/", "-").replace(":", "-")
    return (
        RUNS
        / f"{name}-{short_name(settings.algorithm)}-seed{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    )


def create_run(settings: LearnerSettings, stack: ExitStack) -> RunDirectory:
    """Creates the folder of a new run, and locks it until the stack is closed.

    Raises:
        ConfigurationError: The folder exists already, or cannot be created.
    """
    path = settings.run_dir or default_run_dir(settings)
    run = RunDirectory.create(path.parent, path.name)
    stack.enter_context(run.locked())
    return run


def find_checkpoint(
    settings: LearnerSettings, stack: ExitStack, announce: Callable[[str], None]
) -> tuple[RunDirectory, tuple[Path, CheckpointInfo] | None]:
    """Locks the folder of a resumed run until the stack is closed, and finds the run's newest checkpoint.

    Args:
        settings: The settings of the run.
        stack: Holds the lock.
        announce: Called with a line about the point from which the run continues.

    Returns:
        The folder, and the checkpoint with its manifest; None if the run has no checkpoint yet.

    Raises:
        ConfigurationError: Another process trains in the folder.
    """
    run = RunDirectory(settings.run_dir or default_run_dir(settings))
    stack.enter_context(run.locked())
    checkpoint = newest_checkpoint(run)
    announce(describe_resume(run, checkpoint))
    return run, checkpoint


def describe_resume(run: RunDirectory, checkpoint: tuple[Path, CheckpointInfo] | None) -> str:
    """Returns a line for the terminal about the point from which a run continues."""
    if checkpoint is None:
        return f"resuming {run.path}: it has no checkpoint yet, and begins again"
    info = checkpoint[1]
    return f"resuming {run.path}: {info.n_updates:,} updates, {info.env_steps:,} env steps"


def describe_limits(limits: Mapping[str, str]) -> str:
    """Returns a line for the terminal about a resumed run that has nothing left to train.

    Args:
        limits: As `Trainer.reached_limits` returns them; not empty.
    """
    reached = " and ".join(f"{option} {values}" for option, values in limits.items())
    return f"the run had already reached {reached}; to train it further, raise {' and '.join(limits)}"


def write_settings(
    settings: LearnerSettings, run: RunDirectory, env_steps: int, announce: Callable[[str], None]
) -> None:
    """Writes the settings of a run.

    Announces settings that changed at the resume, and keeps their history.

    Args:
        settings: The settings.
        run: The run's folder.
        env_steps: The environment steps of the resumed checkpoint; 0 for a new run.
        announce: Called with a line for the terminal.

    Raises:
        OSError: The settings cannot be written; the folder of a new run is removed.
    """
    values = settings.model_dump(mode="json", exclude={"resume"})
    if settings.resume is None:
        try:
            run.write_settings(values)
        except (OSError, ConfigurationError):
            run.discard()
            raise
        return
    history = run.read_history()
    changes = settings_changes(settings, run.read_settings())
    if changes:
        changed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes.items())
        is_exact = settings.deterministic or settings.checkpoint_interval_updates is not None
        other_bits = is_exact and changes_bits(settings, changes)
        announce(f"changed settings: {changed}" + (f"; {_OTHER_BITS}" if other_bits else ""))
        if "total_steps" in changes and (moved := _moved_schedules(settings, changes["total_steps"], env_steps)):
            announce(f"schedules follow total_steps, and continue from other values: {moved}")
        history.append(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "env_steps": env_steps,
                "changed": {name: list(values) for name, values in changes.items()},
            }
        )
    run.write_settings(values, history=history)


def _moved_schedules(settings: LearnerSettings, totals: tuple[int, int], env_steps: int) -> str:
    """Returns the changes of scheduled settings under another total, such as `"ppo.learning_rate 4e-05 -> 0.0002"`.

    Args:
        settings: The settings from now on.
        totals: The old and the new total of environment steps.
        env_steps: The environment steps of the checkpoint.
    """
    moved = []
    for group in sorted(groups_of(settings.algorithm)):
        for name, value_at in getattr(settings, group).schedules().items():
            before, now = (f"{value_at(env_steps / total):.3g}" for total in totals)
            if before != now:
                moved.append(f"{group}.{name} {before} -> {now}")
    return ", ".join(moved)
