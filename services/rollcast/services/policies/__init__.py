"""Sends policies to actors: their values, their bytes, and both ends of PolicyService."""
