"""Plays whole episodes with a policy, to measure how good it is."""
