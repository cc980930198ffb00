"""The replay buffer: stores for entries, samplers, a rate limiter, and the thread-safe buffer itself in `buffer`."""
