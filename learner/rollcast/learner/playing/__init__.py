"""TODO room rollcast.learner.playing."""
