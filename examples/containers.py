"""Collects a batch from two actors in containers: `python examples/containers.py [IMAGE]`, after `make images`."""

import sys

from rollcast.actor import EnvironmentFactory, TorchPolicy, probe_spaces
from rollcast.learner import DockerDistributedActors
from rollcast.services import PolicySpec

policy = TorchPolicy(probe_spaces(EnvironmentFactory("CartPole-v1")), PolicySpec())
image = sys.argv[1] if len(sys.argv) > 1 else "rollcast-actor"
with DockerDistributedActors("CartPole-v1", policy, 32, n_actors=2, batch_size=4, image=image) as actors:
    batch, *_ = actors.collect_outputs("cpu")
    print(f"{batch.n_env_steps} steps at {actors.addresses[0]}, {len(batch.episodes)} episodes")
