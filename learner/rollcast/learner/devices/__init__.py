"""The learner's device: copies between it and main memory."""
