"""The replay buffer: column stores, samplers, the rate limiter, and the thread-safe whole in `buffer`."""
