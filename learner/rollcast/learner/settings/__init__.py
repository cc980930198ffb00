"""TODO room rollcast.learner.settings."""
