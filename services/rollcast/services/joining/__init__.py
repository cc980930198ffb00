"""Messages of actors and learner beside rollouts: joining, what an actor does, evaluations."""
