"""The seam between the trainer and whoever keeps its metrics."""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

logger = logging.getLogger(__name__)


class MetricsWriter(Protocol):
    """Keeps metrics. One thread calls it, the trainer's."""

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Keeps a record.

        Args:
            env_steps: How many environment steps training has made; never decreases.
            metrics: Values by name; a slash groups names (`"learner/policy_loss"`). NaN and infinity are kept.

        Raises:
            OSError: If it cannot be kept: the disk is full. The next one may be.
        """

    def close(self) -> None:
        """Keeps what was written and lets go of the file. Idempotent; nothing is written after it."""


def write_all(writers: Iterable[MetricsWriter], env_steps: int, metrics: Mapping[str, float]) -> None:
    """Writes one record to every writer; one that cannot write it is an error in the log, and nothing else.

    Args:
        writers: In the order they are called.
        env_steps: As `MetricsWriter.write` has it.
        metrics: As `MetricsWriter.write` has it.
    """
    for writer in writers:
        try:
            writer.write(env_steps, metrics)
        except OSError as error:
            what = "the metrics after %d env steps are not written: %s; training goes on, and tries again"
            logger.error(what, env_steps, error)  # noqa: TRY400  # the message says it all
