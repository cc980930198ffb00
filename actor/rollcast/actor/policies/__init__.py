"""Policies: networks, distributions over actions, exploration, and acting with them."""
