"""TODO room rollcast.services.process."""
