"""Benchmarks. Every module prints a table; none asserts a time."""
