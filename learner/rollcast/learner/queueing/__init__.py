"""Queues rollouts between the streams that bring them and the trainer that takes them."""
