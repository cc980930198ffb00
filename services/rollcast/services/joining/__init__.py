"""What actors and learner say to each other beside rollouts: joining, what an actor does, evaluations."""
