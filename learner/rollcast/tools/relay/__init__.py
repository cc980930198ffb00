"""Relays: actors connect to them as if they were the learner; they forward rollouts in bundles."""
