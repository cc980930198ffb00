"""TODO room rollcast.learner.replay.sampling."""
