"""The actor process: its loop, its watchdogs, and the same loop as a child process of the learner."""
