"""Hostile input by the million: `python -m tests.fuzz`; docs/hostile_input.md says what it does and found."""
