"""Trains: the loop, its control from outside, what it keeps on the disk, and the making of a run from settings."""
