"""The write-ahead log of rollouts: acknowledged rollouts are on the disk. See docs/howto/durable_runs.md."""
