"""TODO room rollcast.services.policies."""
