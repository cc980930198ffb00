"""Serves actors: admits them, gives credits, drops duplicates, and sends policies."""
