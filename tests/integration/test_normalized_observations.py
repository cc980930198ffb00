"""Observations that are normalised by the policy: actors in other processes and the learner see the same."""

import numpy as np
import pytest
import torch

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.torch_distributions import log_prob
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.observation_statistics import observe_batch
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from rollcast.v1 import policy_pb2

pytestmark = pytest.mark.slow


def test_two_actors_and_the_learner_agree_for_every_version():
    env_factory = EnvironmentFactory("tests.environments:CountingEnv", {"n_steps": 9})
    spec = PolicySpec(hidden_sizes=(8,), normalize_observations=True)
    algorithm = Impala(probe_spaces(env_factory), spec, ImpalaSettings(), seed=0)
    again = TorchPolicy(algorithm.policy.spaces, algorithm.policy.spec)
    states: dict[int, PolicyState] = {1: algorithm.policy_state()}
    observations = []
    with SubprocDistributedActors(env_factory, algorithm.policy, 8, 2, 4, envs_per_actor=2, seed=0) as actors:
        for _ in range(12):
            batch, *_ = actors.collect_outputs("cpu")
            columns = batch.substeps[FLAT_SUBSTEP]
            for b, version in enumerate(batch.policy_version.tolist()):
                again.load_state_arrays(states[version])
                with torch.no_grad():
                    parameters = again.parameters_of({"": columns.observation[""][:, b]})
                acted = log_prob(algorithm.policy.spaces[FLAT_SUBSTEP].action, parameters, columns.action[:, b])
                torch.testing.assert_close(columns.log_prob[:, b], acted, rtol=1e-5, atol=1e-5)
            observations.append(columns.observation[""].numpy().reshape(-1, 4).copy())
            algorithm.update(batch, progress=0.0)
            observe_batch(algorithm.policy, batch)
            actors.broadcast_updated_policy(algorithm.policy_state())
            states[actors.policy_version] = algorithm.policy_state()
    newest = states[max(states)]
    seen = np.concatenate(observations).astype(np.float64)
    assert newest["normalization.0.count"] == len(seen)
    np.testing.assert_allclose(newest["normalization.0.mean"], seen.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(newest["normalization.0.variance"], seen.var(axis=0), rtol=1e-9, atol=1e-12)

    # as two actors get it over the wire: the bits of what the network sees
    learner = algorithm.policy.normalized({"": torch.from_numpy(seen.astype(np.float32))})[""].numpy()
    assembler = PolicyAssembler()
    for _ in range(2):
        for message in encode_policy(13, newest).chunks:
            received = assembler.add(policy_pb2.GetPolicyResponse.FromString(message).chunk)
        assert received is not None
        acting = make_policy(algorithm.policy.spaces, spec, seed=0)
        acting.load(*received)
        network = acting._networks[FLAT_SUBSTEP]  # type: ignore[attr-defined]
        assert network._features({"": seen.astype(np.float32)}).tobytes() == learner.tobytes()
