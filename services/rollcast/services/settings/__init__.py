"""Reads the settings of a process from command line, environment and file, and explains them."""
