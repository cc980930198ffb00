"""TODO room rollcast.learner.replay.stores."""
