"""Makes the gRPC server of a learner: its address, its threads, and the interceptors around every call."""
