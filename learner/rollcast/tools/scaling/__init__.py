"""Decides how many actors a learner wants, from who waits for whom: `rollcast scaler`."""
