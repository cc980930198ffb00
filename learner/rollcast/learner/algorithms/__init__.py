"""Algorithms: `Algorithm`, the interface that a trainer calls, and IMPALA, SAC, DQN and your own behind it."""
