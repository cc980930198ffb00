"""TODO room rollcast.learner.replay.columns."""
