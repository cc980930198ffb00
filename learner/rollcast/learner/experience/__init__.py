"""TODO room rollcast.learner.experience."""
