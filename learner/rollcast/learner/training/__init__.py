"""TODO room rollcast.learner.training."""
