"""The directory of a run: its settings, metrics and policies, its checkpoints and its log."""
