"""Carries rollouts from actors to a learner or into a file: values, codecs, checks, and both ends of RolloutService."""
