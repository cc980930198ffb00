"""Starts and ends the processes of rollcast: signals, exit codes, logs fit for a terminal, and the commands to type."""
