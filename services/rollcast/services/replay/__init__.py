"""Serves a replay buffer to learners elsewhere: its values, the messages of its batches, and ReplayService."""
