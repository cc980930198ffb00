"""TODO room rollcast.actor.workers."""
