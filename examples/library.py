"""The same training as `rollcast train`, with your own training loop: `python examples/library.py [SECONDS]`."""

import sys
import time
from collections import deque

from rollcast.actor import EnvironmentFactory, probe_spaces
from rollcast.learner import Impala, ImpalaSettings, SubprocDistributedActors
from rollcast.services import PolicySpec


def train(time_limit_s: float, target_return: float = 475.0) -> float:
    """Trains on CartPole-v1 until it is solved or the time is up; returns the mean return of the last 100 episodes."""
    env_factory = EnvironmentFactory("CartPole-v1")
    algorithm = Impala(probe_spaces(env_factory), PolicySpec(), ImpalaSettings(learning_rate=2e-3), seed=0)
    actors = SubprocDistributedActors(
        env_factory, algorithm.policy, n_rollout_steps=32, n_actors=2, batch_size=64, envs_per_actor=64, seed=0
    )
    returns: deque[float] = deque(maxlen=100)
    mean_return, env_steps, n_updates = 0.0, 0, 0
    deadline = time.monotonic() + time_limit_s
    with actors:  # starts the processes, and ends them after the block
        while time.monotonic() < deadline and not (len(returns) == 100 and mean_return >= target_return):
            batch, queue_before, _, waited_s = actors.collect_outputs("cpu")
            metrics = algorithm.update(batch, progress=0.0)
            actors.broadcast_updated_policy(algorithm.policy_state())
            env_steps, n_updates = env_steps + batch.n_env_steps, n_updates + 1
            returns.extend(episode.episode_return for episode in batch.episodes)
            mean_return = sum(returns) / len(returns) if returns else 0.0
            if n_updates % 25 == 0:
                print(
                    f"{env_steps:>9,} steps  return {mean_return:5.1f}  entropy {float(metrics['entropy']):.2f}  "
                    f"queue {queue_before}  waited {1000 * waited_s:.1f} ms  policy {actors.policy_version}"
                )
    return mean_return


if __name__ == "__main__":
    print(f"mean return {train(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0):.1f}")
