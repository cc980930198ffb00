"""Statistics of events: how they are declared and fired, and reduced from steps to episodes to epochs."""
