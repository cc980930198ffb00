"""Central inference: an actor computes the policy of others, which act by themselves whenever it is gone."""
