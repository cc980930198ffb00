"""TODO room rollcast.services.security."""
