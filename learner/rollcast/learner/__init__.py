"""Learning: distributed actors, rollout queue, batches, algorithms, the trainer and the command line."""
