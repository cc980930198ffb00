"""Calls a learner or a replay buffer: channels, the typed clients, the health probe."""
