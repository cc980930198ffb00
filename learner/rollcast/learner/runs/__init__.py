"""TODO room rollcast.learner.runs."""
