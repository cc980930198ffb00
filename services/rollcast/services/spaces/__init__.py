"""TODO room rollcast.services.spaces."""
