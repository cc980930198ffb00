"""Reads a process's settings from the command line, the environment and a file, and prints their help."""
