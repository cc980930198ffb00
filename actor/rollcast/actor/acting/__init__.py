"""The actor process: its loop, what watches it, and the same loop as a child process of the learner."""
