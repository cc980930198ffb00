"""Relays between actors and their learner. Actors connect to a relay as if it were the learner."""
