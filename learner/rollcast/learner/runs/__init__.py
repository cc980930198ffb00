"""The directory of a run: its settings, metrics and policies, and the folders of its checkpoints and its log."""
