"""Statistics of events: their declaration, firing, and reduction from steps to episodes to epochs."""
