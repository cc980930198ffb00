"""Remembers what a run has done, in bounded memory, for those who watch it. Knows neither gRPC nor training."""
