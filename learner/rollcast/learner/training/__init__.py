"""Training: the loop, its control by operators, its files, and the construction of a run from settings."""
