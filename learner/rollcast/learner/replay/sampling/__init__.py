"""Samplers: uniform, by priority, and by age, with the trees for priorities."""
