"""TODO room rollcast.learner.replay.limiter."""
