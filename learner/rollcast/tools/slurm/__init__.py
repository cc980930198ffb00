"""Runs on Slurm: the files of a run's jobs, their scripts, and their submission."""
