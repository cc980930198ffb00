"""Rollout workers: step environments with a policy, and record rollouts."""
