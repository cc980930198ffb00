"""The gRPC servers: address, threads, and the interceptors of every call."""
