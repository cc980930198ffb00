"""TODO room rollcast.actor.acting."""
