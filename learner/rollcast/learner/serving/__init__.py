"""Serves actors: lets them join, gives credits, drops duplicates, and sends them policies."""
