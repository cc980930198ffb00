"""TODO room rollcast.learner.ingest."""
