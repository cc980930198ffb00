"""TODO room rollcast.services.limits."""
