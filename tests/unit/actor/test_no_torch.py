import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.services.policies.policies import PolicySpec

for vectorization in ("sync", "entry_point", "subprocess"):
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", vectorization=vectorization), 2)
    policy = make_policy(environment_spaces(vector_env), PolicySpec(), seed=0)
    sizes = [4, 64, 64, 2]
    state = {f"networks.0.layers.{i}.weight": np.zeros((sizes[i + 1], sizes[i]), np.float32) for i in range(3)}
    state |= {f"networks.0.layers.{i}.bias": np.zeros(sizes[i + 1], np.float32) for i in range(3)}
    policy.load(1, state)
    worker = RolloutWorker(vector_env, policy, 40, actor_id="a", incarnation=1, env_seed=0)
    rollout = worker.collect()
    aggregator = EpochStatsAggregator()
    for episode in rollout.episodes:
        aggregator.add(episode)
    worker.close()
loaded = [name for name in sys.modules if name.split(".")[0] in ("torch", "grpc", "google")]
assert not loaded, loaded
"""


@pytest.mark.slow
def test_an_actor_with_an_mlp_never_loads_torch():
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
