"""Every observation and action space: from the environment over the wire into an update, and back as a policy."""

import itertools

import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, flatten_observation, space_leaves
from tests.environments import ACTION_SPACES, OBSERVATION_SPACES
from tests.processes import DEADLINE_S

pytestmark = pytest.mark.slow


# The matrix knows which go together: test_combinations.py.
@pytest.mark.parametrize(("observation", "action"), [*zip(OBSERVATION_SPACES, itertools.cycle(ACTION_SPACES))])
def test_trains_and_acts_in_every_space(observation: str, action: str):
    env_factory = EnvironmentFactory("tests.environments:SpaceEnv", {"observation": observation, "action": action})
    algorithm = Impala(probe_spaces(env_factory), PolicySpec(hidden_sizes=(8,)), ImpalaSettings(), seed=0)
    actors = SubprocDistributedActors(
        env_factory,
        algorithm.policy,
        4,
        1,
        3,
        envs_per_actor=2,
        on_actor_failure="fail",
        serving=ServingOptions(addresses=("127.0.0.1:0",), collect_timeout_s=DEADLINE_S),
    )
    with actors:
        for _ in range(3):
            batch, *_ = actors.collect_outputs("cpu")
            columns = batch.substeps[FLAT_SUBSTEP]
            for path, leaf in space_leaves(OBSERVATION_SPACES[observation]).items():
                assert columns.observation[path].shape == (4, 3, *leaf.shape)
                assert columns.observation[path].numpy().dtype == leaf.dtype
            metrics = algorithm.update(batch, progress=0.0)
            assert all(np.isfinite(float(value)) for value in metrics.values())
            actors.broadcast_updated_policy(algorithm.policy_state())
        space = OBSERVATION_SPACES[observation]
        leaves = {path: np.asarray(leaf)[None] for path, leaf in flatten_observation(space, space.sample()).items()}
        with LearnerClient(actors.addresses[1], timeout_s=DEADLINE_S) as client:
            chosen, version = client.act(leaves, deterministic=True)
        assert version == 4
        assert chosen.shape == (1, *ACTION_SPACES[action].shape)
