"""Defines the interface of metrics writers, and writes a record to several of them."""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

logger = logging.getLogger(__name__)


class MetricsWriter(Protocol):
    """A place that metrics are written to. Only the trainer's thread calls it."""

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Writes a record.

        Args:
            env_steps: The environment steps of training so far; for an evaluation, those when its policy was due. Never
                decreases in records of one kind.
            metrics: Values by name; a slash groups names (`"learner/policy_loss"`). NaN and infinity are allowed.

        Raises:
            OSError: If the record cannot be written, because the disk is full. A later one may succeed.
        """

    def close(self) -> None:
        """Flushes and closes the file; idempotent. Nothing is written after it.

        Raises:
            OSError: If what was flushed cannot be written, because the disk is full. It is closed all the same.
        """


def write_all(writers: Iterable[MetricsWriter], env_steps: int, metrics: Mapping[str, float]) -> None:
    """Writes one record to every writer. Logs an error for a writer that cannot write it, and goes on.

    Args:
        writers: The writers, called in this order.
        env_steps: See `MetricsWriter.write`.
        metrics: See `MetricsWriter.write`.
    """
    for writer in writers:
        try:
            writer.write(env_steps, metrics)
        except OSError as error:
            what = "the metrics after %d env steps are not written: %s; training goes on, and tries again"
            logger.error(what, env_steps, error)  # noqa: TRY400  # the message says it all


def close_all(writers: Iterable[MetricsWriter]) -> None:
    """Closes every writer. Logs an error for a writer that cannot write its rest: the end has another outcome.

    Args:
        writers: The writers, closed in this order.
    """
    for writer in writers:
        try:
            writer.close()
        except OSError as error:
            logger.error("the last metrics are not written: %s", error)  # noqa: TRY400  # the message says it all
