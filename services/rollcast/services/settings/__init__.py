"""TODO room rollcast.services.settings."""
