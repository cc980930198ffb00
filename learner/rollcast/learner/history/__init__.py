"""Keeps the history of a run in bounded memory, for its viewers. Imports neither gRPC nor training."""
