"""Faults on purpose: actors killed and frozen, connections cut and garbled, and the books kept meanwhile.

`make chaos` runs it; docs/chaos.md says how to read the report.
"""
