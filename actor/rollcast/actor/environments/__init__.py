"""Environments: made by gymnasium id or factory, structured environments, and checks of the returned values."""
