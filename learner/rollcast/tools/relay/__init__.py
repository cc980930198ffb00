"""Relays: the learner of their actors, and their actors' voice at the learner."""
