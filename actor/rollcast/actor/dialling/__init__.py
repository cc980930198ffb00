"""Environments that dial in, as the environments of an actor: their places, and when they act together."""
