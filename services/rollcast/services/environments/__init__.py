"""Serves environments that dial in: their messages, the order in which they may come, and the stream of one client."""
