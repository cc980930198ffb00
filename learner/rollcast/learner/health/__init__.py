"""Finds problems of training in the records of a run, as one sentence each. Imports neither gRPC nor training."""
