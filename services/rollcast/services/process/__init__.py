"""Shared parts of rollcast's processes: start and end, signals, exit codes, logs, commands in messages."""
