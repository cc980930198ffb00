"""Describes observation and action spaces: their leaves, their comparison, and their protobuf form."""
