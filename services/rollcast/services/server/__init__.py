"""TODO room rollcast.services.server."""
