"""Making environments: by gymnasium id or by the name of one's own factory, one at a time or as a vector."""
