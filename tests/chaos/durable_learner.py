"""A learner process that keeps books of what it has learnt from, in its checkpoints, and whoever reads them.

python -m tests.chaos.durable_learner COMMAND ...        # as `python -m learner COMMAND ...`
"""

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.algorithms.impala import Impala
from learner.batch import Batch
from learner.cli import main
from learner.durable.coverage import Coverage, OpenRollouts
from learner.durable.recovery import RecoveredRollouts, take_inventory
from learner.replay.step_columns import STEP
from services.recording_codec import RecordingHeader
from services.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from tests.chaos.bookkeeping import seed_and_total

_BOOKS = "books.npy"

# Rows of what an environment's seed and its number of steps were.
Steps = NDArray[np.int64]


def steps_of(observed: NDArray[np.float32]) -> Steps:
    """`[N, 2]`, seed and number of steps, of observations `[N, 24]`."""
    return np.stack(seed_and_total(observed), axis=-1)


class BookkeepingImpala(Impala):
    """IMPALA that notes every step that it has learnt from."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._books: list[Steps] = []

    def update(self, batch: Batch, *, progress: float) -> Any:
        metrics = super().update(batch, progress=progress)
        observed, valid = batch.substeps[FLAT_SUBSTEP].observation[""].numpy(), batch.valid.numpy()
        self._books += [steps_of(observed[valid[:, b], b]) for b in range(observed.shape[1])]
        return metrics

    def save(self, directory: Path) -> None:
        super().save(directory)
        np.save(directory / _BOOKS, np.concatenate([np.empty((0, 2), np.int64), *self._books]))

    def load(self, directory: Path) -> None:
        super().load(directory)
        self._books = [np.load(directory / _BOOKS, allow_pickle=False)]


def read_books(run_dir: Path, spaces: EnvironmentSpaces, n_rollout_steps: int) -> tuple[Steps, int]:
    """What a run has learnt from, or has in its buffer or its log, in that order.

    Args:
        run_dir: Of a run that has stopped.
        spaces: Of its environment.
        n_rollout_steps: T.

    Returns:
        The steps; and how many of them are from the log.
    """
    checkpoint = max(run_dir.glob("checkpoints/[0-9]*"), key=lambda path: int(path.name))
    if (checkpoint / _BOOKS).exists():
        steps = [np.load(checkpoint / _BOOKS, allow_pickle=False)]
    else:
        steps = [_rows(checkpoint / "replay" / "substep0")]
    state = json.loads((checkpoint / "training.json").read_text())["actors"]["log"]
    header = RecordingHeader(spaces=spaces, n_rollout_steps=n_rollout_steps, n_envs=1)
    found = take_inventory(run_dir / "log", header, Coverage.from_json(state)).found
    rollouts = RecoveredRollouts(run_dir / "log", header, deque(found), OpenRollouts())
    n_logged = 0
    while (piece := rollouts.take(1)) is not None:
        rollout = piece.to_rollout()
        observed = rollout.substeps[FLAT_SUBSTEP].observation[""][:, 0]
        steps.append(steps_of(observed if rollout.valid is None else observed[rollout.valid[:, 0]]))
        n_logged += len(steps[-1])
    assert not rollouts.n_lost
    return np.concatenate(steps), n_logged


def _rows(directory: Path) -> Steps:
    """The steps in a ring of transitions."""
    files = sorted(directory.glob("rows-*.npz"), key=lambda path: int(path.stem.split("-")[1]))
    with np.load(directory / "state.npz", allow_pickle=False) as arrays:
        (name,) = (name for name in arrays if name.endswith("flags"))
        flags = arrays[name]
    columns = []
    for path in files:
        with np.load(path, allow_pickle=False) as arrays:
            columns += [arrays[name] for name in arrays if arrays[name].shape[1:] == (24,)]
    return steps_of(np.concatenate(columns)[(flags & STEP) > 0])


if __name__ == "__main__":
    import learner.training_run

    learner.training_run.ALGORITHMS["impala"] = BookkeepingImpala
    sys.exit(main(sys.argv[1:]))
