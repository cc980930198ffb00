"""Watches a remote run: follows its learner, keeps its history, and puts it into words, for terminal and page."""
