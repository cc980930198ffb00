"""Where metrics go: files for later, TensorBoard, the terminal."""

from learner.writers.json_lines import JsonLinesWriter
from learner.writers.tensorboard import TensorBoardWriter
from learner.writers.writer import MetricsWriter, write_all

__all__ = ["JsonLinesWriter", "MetricsWriter", "TensorBoardWriter", "write_all"]
