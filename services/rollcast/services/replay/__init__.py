"""The remote replay buffer: values, the messages of batches, and ReplayService."""
