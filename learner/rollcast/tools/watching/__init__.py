"""Watches a remote run for terminal and page: follows its learner, keeps its history, and describes its state."""
