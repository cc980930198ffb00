"""Distributed actors: one interface, and the kinds of actors behind it."""
