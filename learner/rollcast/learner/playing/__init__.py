"""Plays whole episodes with a policy that a run has saved."""
