"""Bounds the numbers with which peers count, so that both sides can count on from them in 64 bits."""

from typing import Final

# A run with a million rollouts a second reaches this number after 150,000 years.
MAX_COUNT: Final = 2**62
