"""Environments: made by gymnasium id or by factory, structured ones, and checks of what they return."""
