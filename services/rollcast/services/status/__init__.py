"""TODO room rollcast.services.status."""
