"""Says in a sentence what is not healthy about training, by the records of a run. Knows neither gRPC nor training."""
