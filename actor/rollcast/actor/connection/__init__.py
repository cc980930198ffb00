"""The connection of an actor to its learner: rollouts up, policies down, over every reconnect."""
