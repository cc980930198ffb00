"""Metrics for Prometheus: the server, and its settings."""
