"""Hostile input by the million: `python -m tests.fuzz`; docs/development/fuzzing.md says what it does and found."""
