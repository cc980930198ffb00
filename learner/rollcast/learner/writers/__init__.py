"""Writes metrics to files, to TensorBoard and to the terminal."""
