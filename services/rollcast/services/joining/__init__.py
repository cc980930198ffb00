"""The messages between actors and learner besides rollouts: joining, activity reports, evaluations."""
