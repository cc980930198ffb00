"""Checkpoints, from which training continues after a crash, a restart, or a stop."""
