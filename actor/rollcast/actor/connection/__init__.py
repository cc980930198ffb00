"""An actor's connection to its learner: sends rollouts and receives policies, across reconnects."""
