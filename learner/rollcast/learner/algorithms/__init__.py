"""Algorithms: `Algorithm`, the interface that a trainer calls, and IMPALA, SAC, DQN and one's own behind it."""
