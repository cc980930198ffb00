"""Protects connections: TLS, tokens, and the table of the role that each call needs."""
