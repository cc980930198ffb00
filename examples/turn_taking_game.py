"""Learns tic-tac-toe by self-play: `python examples/turn_taking_game.py [STEPS]`.

The game is PettingZoo's. Both players share one policy, and an action mask allows only free fields. At the end, the
policy plays against an opponent that chooses free fields at random.
"""

import sys

import numpy as np

from rollcast.actor import EnvironmentFactory, Policy, RandomPolicy, make_policy, probe_spaces
from rollcast.learner import Impala, ImpalaSettings, SubprocDistributedActors
from rollcast.services import PolicySpec, flatten_observation

GAME = EnvironmentFactory("pettingzoo:make", {"env_type": "aec", "id": "classic/tictactoe-v3"})


def train(n_steps: int, seed: int = 0) -> Policy:
    """Plays `n_steps` moves against itself and learns from them; returns the trained policy."""
    settings = ImpalaSettings(
        learning_rate=5e-3, learning_rate_schedule="linear", entropy_cost=0.05, entropy_cost_end=0.01
    )
    spaces = probe_spaces(GAME)
    algorithm = Impala(spaces, PolicySpec(), settings, seed=seed)
    actors = SubprocDistributedActors(
        GAME, algorithm.policy, n_rollout_steps=16, n_actors=1, batch_size=64, envs_per_actor=32, seed=seed
    )
    played = 0
    with actors:
        while played < n_steps:
            batch, *_ = actors.collect_outputs("cpu")
            algorithm.update(batch, progress=played / n_steps)
            actors.broadcast_updated_policy(algorithm.policy_state())
            played += batch.n_env_steps
    policy = make_policy(spaces, algorithm.policy.spec, seed=seed)
    policy.load(actors.policy_version, algorithm.policy_state())
    return policy


def matches(policy: Policy, opponent: Policy, n_games: int) -> tuple[int, int, int]:
    """Plays against an opponent, and moves first in every other game; returns the games won, drawn and lost."""
    env = GAME()
    results = []
    for game in range(n_games):
        players = (policy, opponent) if game % 2 == 0 else (opponent, policy)
        turn = env.reset(seed=game)
        while turn.observations:
            ((actor, seen),) = turn.observations.items()
            leaves = flatten_observation(env.spaces[actor.substep_key].observation, seen)
            rows = {path: leaf[None] for path, leaf in leaves.items()}
            action, _ = players[actor.agent_index].act(rows, deterministic=True, substep_key=actor.substep_key)
            turn = env.step({actor: action[0]})
        own = next(reward for actor, reward in turn.rewards.items() if players[actor.agent_index] is policy)
        results.append(own)
    return tuple(int(np.count_nonzero(np.array(results) == result)) for result in (1, 0, -1))


if __name__ == "__main__":
    learnt = train(int(sys.argv[1]) if len(sys.argv) > 1 else 120_000)
    random_player = RandomPolicy(learnt.spaces, seed=1)
    random_player.load(0, {})
    won, drawn, lost = matches(learnt, random_player, 200)
    print(f"against random play: won {won}, drew {drawn}, lost {lost} of 200")
