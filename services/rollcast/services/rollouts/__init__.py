"""Rollouts: values, codecs, checks, and recordings in files."""
