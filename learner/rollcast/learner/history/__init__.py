"""Keeps the history of a run in bounded memory, for its viewers. Knows neither gRPC nor training."""
