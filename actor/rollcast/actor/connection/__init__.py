"""TODO room rollcast.actor.connection."""
