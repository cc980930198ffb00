"""Protects connections: TLS, tokens, and the table of which role may call what."""
