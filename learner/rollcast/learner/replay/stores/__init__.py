"""Stores: the layout of transitions and rollouts in the columns, and the choice of entries to remove."""
