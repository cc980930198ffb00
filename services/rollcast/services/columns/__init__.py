"""The definition of a rollout's columns, shared by all code that records, sends, cuts or stores rollouts."""
