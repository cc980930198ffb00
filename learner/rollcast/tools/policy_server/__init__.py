"""Serves the policy of a run to programs that ask for actions."""
