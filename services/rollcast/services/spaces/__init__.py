"""Describes observation and action spaces: their leaves, whether two sides agree on them, and their protobuf form."""
