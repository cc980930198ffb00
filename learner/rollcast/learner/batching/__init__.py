"""Assembles batches from queued rollouts in a ring of memory slots."""
