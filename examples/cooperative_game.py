"""Two agents learn to cover two landmarks: `python examples/cooperative_game.py`.

The game is MPE's "simple spread", in PettingZoo's form. Both agents get the same reward. It is larger the nearer an
agent is to each landmark. The agents see all positions, act at the same time, and share one policy. You may add any
option of `rollcast train`. `--agent-policies separate` gives each agent its own policy. To see the result, run
`rollcast evaluate RUN_DIRECTORY`.
"""

import sys

from rollcast.learner import main

# A short horizon: an episode has 25 steps, and the reward of a step depends only on the current distances.
ARGUMENTS = (
    "train",
    *("--env-id", "mpe2.simple_spread_v3:parallel_env", "--env-kwargs", '{"N": 2, "local_ratio": 0.0}'),
    *("--n-rollout-steps", "25", "--envs-per-actor", "16", "--batch-size", "16", "--total-steps", "300000"),
    *("--algorithm", "impala", "--impala.discount", "0.9"),
    *("--impala.learning-rate", "0.003", "--impala.reward-scale", "0.3"),
)

if __name__ == "__main__":
    sys.exit(main([*ARGUMENTS, *sys.argv[1:]]))
