"""Plays whole episodes with a run's saved policy."""
