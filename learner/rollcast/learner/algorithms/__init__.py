"""Algorithms: the `Algorithm` interface for trainers, and the algorithms behind it: IMPALA, SAC, DQN, custom ones."""
