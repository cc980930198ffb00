"""TODO room rollcast.services.wire."""
