"""Asks a running learner for its status and for actions: `python examples/client.py HOST:PORT`."""

import sys

import numpy as np

from rollcast.services import LearnerClient

with LearnerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051") as learner:
    status = learner.status()
    print(f"{status.phase.name.lower()}: {status.env_steps:,} steps, mean return {status.mean_return}")
    for actor in learner.actors():
        print(
            f"{actor.actor_id} is {actor.state.name.lower()}: {actor.env_steps:,} steps, policy {actor.policy_version}"
        )
    actions, version = learner.act({"": np.zeros((3, 4), np.float32)}, deterministic=True)
    print(f"policy {version} would do {actions.tolist()}")
