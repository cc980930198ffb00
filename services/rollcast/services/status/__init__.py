"""The status of a learner and its actors, for operators, and LearnerService."""
