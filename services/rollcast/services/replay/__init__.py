"""TODO room rollcast.services.replay."""
