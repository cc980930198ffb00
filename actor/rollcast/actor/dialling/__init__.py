"""Environments that dial in, as an actor's environments: their places and their batches."""
