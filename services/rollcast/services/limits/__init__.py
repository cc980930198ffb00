"""Limits the memory and the work that a peer may cause: counts calls, streams and bytes."""
