"""Checkpoints: what training goes on from after a crash, a restart, or a stop."""
