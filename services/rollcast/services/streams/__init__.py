"""Both sides of RolloutService and RelayService: streams of single actors, and bundled streams of relays."""
