"""Both ends of RolloutService: streams of single actors, and those in which a relay bundles many."""
