"""Trains: the loop, its control from outside, its files, and the making of a run from settings."""
