"""Central inference: one actor computes the policy for others. Without an answer, actors compute it themselves."""
