"""The history of a run for monitoring clients: activities, metrics and events of learner and actors."""
