"""Assembles batches from queued rollouts, one slot of memory after the other."""
