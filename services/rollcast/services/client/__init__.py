"""TODO room rollcast.services.client."""
