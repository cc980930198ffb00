"""Takes rollouts in: lets actors join, gives credits, drops duplicates, and queues rollouts for the trainer."""
