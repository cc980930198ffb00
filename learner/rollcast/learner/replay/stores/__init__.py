"""Stores: how transitions and rollouts are laid out in the columns, and which entries make room for new ones."""
