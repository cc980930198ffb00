"""Two actors in containers, and what they play: `python examples/containers.py [IMAGE]`, after `make images`."""

import sys

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.docker import DockerDistributedActors
from rollcast.learner.training.training_run import probe_spaces
from rollcast.services.policies.policies import PolicySpec

policy = TorchPolicy(probe_spaces(EnvironmentFactory("CartPole-v1")), PolicySpec())
image = sys.argv[1] if len(sys.argv) > 1 else "rollcast-actor"
with DockerDistributedActors("CartPole-v1", policy, 32, n_actors=2, batch_size=4, image=image) as actors:
    batch, *_ = actors.collect_outputs("cpu")
    print(f"{batch.n_env_steps} steps at {actors.addresses[0]}, {len(batch.episodes)} episodes")
