"""Limits the memory and the work that a peer may cause, and counts its calls, streams and bytes."""
