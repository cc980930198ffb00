"""Clients of a learner or a replay buffer: channels, typed clients, the health probe."""
