"""A learner process that keeps books of what it has learnt from, in its checkpoints, and whoever reads them.

python -m tests.chaos.durable_learner COMMAND ...        # as `python -m learner COMMAND ...`
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.algorithms.impala import Impala
from learner.batch import Batch
from learner.cli import main
from learner.replay.array_file import ArrayFileWriter, read_pieces
from services.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from tests.chaos.bookkeeping import seed_and_total
from tests.chaos.run_files import checkpoints, rollouts_in_log, steps_in_buffer

_BOOKS = "books.arrays"

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
        with ArrayFileWriter(directory / _BOOKS) as file:
            file.append({"steps": np.concatenate([np.empty((0, 2), np.int64), *self._books])})

    def load(self, directory: Path) -> None:
        super().load(directory)
        self._books = _read(directory / _BOOKS)


def read_books(run_dir: Path, spaces: EnvironmentSpaces) -> tuple[Steps, int]:
    """What a run has learnt from, or has in its buffer or its log, in that order.

    Args:
        run_dir: Of a run that has stopped.
        spaces: Of its environment.

    Returns:
        The steps; and how many of them are from the log.
    """
    books = checkpoints(run_dir)[-1] / _BOOKS
    if books.exists():
        steps = _read(books)
    else:
        totals, n_wrong = steps_in_buffer(run_dir, spaces)
        assert not n_wrong, f"{n_wrong} steps in the buffer have rewards that are not theirs"
        steps = [np.stack([np.full_like(total, seed), total], axis=-1) for seed, total in totals.items()]
    n_learnt = sum(map(len, steps))
    for piece in rollouts_in_log(run_dir, spaces):
        rollout = piece.to_rollout()
        observed = rollout.substeps[FLAT_SUBSTEP].observation[""]
        for b in range(observed.shape[1]):
            is_step = slice(None) if rollout.valid is None else rollout.valid[:, b]
            steps.append(steps_of(observed[is_step, b]))
    books_and_log = np.concatenate(steps)
    return books_and_log, len(books_and_log) - n_learnt


def _read(books: Path) -> list[Steps]:
    return [piece["steps"] for piece in read_pieces(books)]


if __name__ == "__main__":
    import learner.run_parts

    learner.run_parts.ALGORITHMS["impala"] = BookkeepingImpala
    sys.exit(main(sys.argv[1:]))
