"""Policies: distributions over actions, networks, and how an actor acts with them."""
