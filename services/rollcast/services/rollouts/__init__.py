"""TODO room rollcast.services.rollouts."""
