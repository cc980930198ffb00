"""Finds problems of training in the records of a run, a sentence each. Knows neither gRPC nor training."""
