"""The protection of connections: TLS, tokens and roles."""
