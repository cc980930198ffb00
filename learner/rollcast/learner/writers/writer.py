"""Defines the interface of metrics writers, and writes a record to several of them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

logger = logging.getLogger(__name__)


class MetricsWriter(Protocol):
    """A destination of metrics. Only the trainer's thread calls it."""

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Writes a record.

        Args:
            env_steps: The environment steps of training so far; for an evaluation, the steps when its policy was due.
                Never decreases in records of one kind.
            metrics: Values by name; a slash groups names (`"learner/policy_loss"`). NaN and infinity are allowed.

        Raises:
            OSError: If the record cannot be written, because the disk is full. A later one may succeed.
        """

    def close(self) -> None:
        """Flushes and closes the file; idempotent. No record may follow.

        Raises:
            OSError: If flushed records cannot be written, because the disk is full. The file is closed nevertheless.
        """


@runtime_checkable
class HistogramWriter(Protocol):
    """A writer that also takes histograms."""

    def write_histograms(self, env_steps: int, histograms: Mapping[str, Sequence[int]]) -> None:
        """Writes histograms of one record.

        Args:
            env_steps: See `MetricsWriter.write`.
            histograms: By name, the counts of the whole numbers from 0 on; the last count includes larger ones.

        Raises:
            OSError: See `MetricsWriter.write`.
        """


def write_all(
    writers: Iterable[MetricsWriter],
    env_steps: int,
    metrics: Mapping[str, float],
    histograms: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Writes one record to every writer. Logs an error for a writer that cannot write it, and continues.

    Args:
        writers: The writers, called in this order.
        env_steps: See `MetricsWriter.write`.
        metrics: See `MetricsWriter.write`.
        histograms: See `HistogramWriter.write_histograms`; other writers do not get them. None: none.
    """
    for writer in writers:
        try:
            writer.write(env_steps, metrics)
            if histograms and isinstance(writer, HistogramWriter):
                writer.write_histograms(env_steps, histograms)
        except OSError as error:
            what = "the metrics after %d env steps are not written: %s; training continues, and tries again"
            logger.error(what, env_steps, error)  # noqa: TRY400  # the message says it all


def close_all(writers: Iterable[MetricsWriter]) -> None:
    """Closes every writer. Logs an error for a writer that cannot write remaining records, instead of raising it.

    Args:
        writers: The writers, closed in this order.
    """
    for writer in writers:
        try:
            writer.close()
        except OSError as error:
            logger.error("the last metrics are not written: %s", error)  # noqa: TRY400  # the message says it all
