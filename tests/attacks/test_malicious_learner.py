"""Actors check what a learner tells them, before they act on it."""

import dataclasses

import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.services.joining.join import JoinAgreement
from rollcast.services.policies.policies import PolicySpec
from tests.integration.learner_fakes import serve
from tests.processes import rollcast

pytestmark = pytest.mark.slow

ENV_ID = "tests.environments:CountingEnv"
POLICY = TorchPolicy(probe_spaces(EnvironmentFactory(ENV_ID)), PolicySpec()).state_arrays()
AGREEMENT = JoinAgreement(
    actor_id="a",
    slot=0,
    incarnation=1,
    acknowledged_sequence=0,
    n_rollout_steps=5,
    env_seed=1,
    agent_seed=2,
    policy=PolicySpec(),
    max_message_bytes=4 << 20,
    n_envs=2,
)
NAN = {**POLICY, "networks.0.layers.0.bias": np.full(64, np.nan, np.float32)}


@pytest.mark.parametrize(
    ("changes", "state", "message"),
    [
        ({"n_rollout_steps": 2**32 - 1}, POLICY, "LimitExceededError: a rollout of 4294967295 steps"),
        ({}, NAN, "InvalidTensorError: the policy's weight 'networks.0.layers.0.bias' holds nan at [0]"),
    ],
)
def test_an_actor_refuses_it_says_why_and_ends(changes: dict[str, object], state: dict, message: str):
    with serve() as learner:
        learner.sink.joined["a"] = dataclasses.replace(AGREEMENT, **changes)
        learner.source.publish(1, state)
        done = rollcast("actor", "--learner-address", learner.address, "--env-id", ENV_ID, "--actor-id", "a")
        assert done.returncode == 1, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        learner.sink.wait_for(lambda: learner.sink.failures)
        assert message.removeprefix(f"{learner.sink.failures[0].exception_type}: ") in learner.sink.failures[0].message
        assert learner.sink.rollouts == []
