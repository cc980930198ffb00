"""Decides how many actors a learner needs, from its waits and those of its actors: `rollcast scaler`."""
