"""TODO room rollcast.learner.replay.saving."""
