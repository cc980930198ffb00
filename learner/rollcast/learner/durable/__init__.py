"""The write-ahead log of rollouts: what is acknowledged is on the disk. See docs/howto/durable_runs.md."""
