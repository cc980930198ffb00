"""Acting: environments, policies, the rollout worker and the actor process."""
