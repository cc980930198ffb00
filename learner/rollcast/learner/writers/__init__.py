"""Writes metrics to files, to TensorBoard and to the terminal."""

from rollcast.learner.writers.json_lines import JsonLinesWriter
from rollcast.learner.writers.prometheus import PrometheusWriter
from rollcast.learner.writers.tensorboard import TensorBoardWriter
from rollcast.learner.writers.tracker import TrackerWriter
from rollcast.learner.writers.writer import MetricsWriter, close_all, write_all

__all__ = [
    "JsonLinesWriter",
    "MetricsWriter",
    "PrometheusWriter",
    "TensorBoardWriter",
    "TrackerWriter",
    "close_all",
    "write_all",
]
