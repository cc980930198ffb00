"""Two agents share two landmarks out between them: `python examples/cooperative_game.py`.

The game is MPE's "simple spread", in PettingZoo's form: both earn the same, the more the nearer each landmark has
somebody. They see where everybody is, act at once, and share one policy. Any option of `rollcast train` may follow:
`--agent-policies separate` gives each its own. What they learn: `rollcast evaluate RUN_DIRECTORY`.
"""

import sys

from rollcast.learner import main

# A short horizon: an episode has 25 steps, and each is worth what the distances are just then.
ARGUMENTS = (
    "train",
    *("--env-id", "mpe2.simple_spread_v3:parallel_env", "--env-kwargs", '{"N": 2, "local_ratio": 0.0}'),
    *("--n-rollout-steps", "25", "--envs-per-actor", "16", "--batch-size", "16", "--total-steps", "300000"),
    *("--algorithm", "impala", "--impala.discount", "0.9"),
    *("--impala.learning-rate", "0.003", "--impala.reward-scale", "0.3"),
)

if __name__ == "__main__":
    sys.exit(main([*ARGUMENTS, *sys.argv[1:]]))
