"""Watches a remote run: follows its learner, remembers what it says, and puts it into words, for terminal and page."""
