"""Queues rollouts between the streams that receive them and the trainer that takes them."""
