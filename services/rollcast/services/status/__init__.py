"""Describes a learner and its actors to operators, and serves LearnerService."""
