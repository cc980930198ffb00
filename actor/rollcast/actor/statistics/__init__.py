"""Statistics of episodes: the events, and what an epoch makes of them."""
