"""Limits what a peer may make us hold or do, and counts the calls, streams and bytes that the limits are about."""
