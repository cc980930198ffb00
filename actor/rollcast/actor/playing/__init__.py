"""Plays whole episodes with a policy, to measure its return."""
