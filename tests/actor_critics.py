"""Builders and questions for the tests of actor-critics."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor

from rollcast.actor.policies.torch_distributions import log_prob
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.batches import SPACES, make_batch
from tests.every_algorithm import make_algorithm
from tests.learnt import learnt

SPEC = PolicySpec(hidden_sizes=(16, 16))
ActorCritic = Impala | Ppo | Appo
ACTION_SPACE = SPACES[FLAT_SUBSTEP].action
IMAGES = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=Dict({"image": Box(0, 255, (36, 36, 1), np.uint8), "vector": Box(-np.inf, np.inf, (3,))}),
        action=ACTION_SPACE,
    )
}
_PLAIN_IMPALA = {"reward_scale": 1.0, "max_grad_norm": 1e9, "adam_beta1": 0.9, "learning_rate": 1e-3}


def make_impala(**given: Any) -> Impala:
    made: Impala = make_algorithm("impala", SPACES, SPEC, **{**_PLAIN_IMPALA, **given})
    return made


def make_ppo(**given: Any) -> Ppo:
    made: Ppo = make_algorithm("ppo", SPACES, SPEC, **{"minibatch_steps": 10, **given})
    return made


def make_appo(**given: Any) -> Appo:
    made: Appo = make_algorithm("appo", SPACES, SPEC, **{"minibatch_steps": 10, **given})
    return made


def parameters_of(algorithm: ActorCritic) -> Tensor:
    """Returns a copy of all parameters of policy and critic, and of the policy's buffers."""
    return torch.cat([array.reshape(-1) for part in ("policy", "critic") for array in learnt(algorithm, part).values()])


def log_prob_of(algorithm: ActorCritic, batch: Batch) -> Tensor:
    """Returns the log-probabilities of a batch's actions under the policy that learns, [T, B]."""
    columns = batch.substeps[FLAT_SUBSTEP]
    with torch.no_grad():
        parameters = algorithm.policy.parameters_of({"": columns.observation[""].flatten(0, 1)})
        return log_prob(ACTION_SPACE, parameters, columns.action.flatten()).view_as(batch.reward)


def on_policy_batch(algorithm: ActorCritic, **given: object) -> Batch:
    """Returns a batch whose actions the policy that learns has drawn."""
    return make_batch(**given, log_prob=log_prob_of(algorithm, make_batch(**given)))


def bools(n_steps: int, n_envs: int, *true: tuple[int, int]) -> Tensor:
    """Returns a column [T, B] that is True at the given places only."""
    column = torch.zeros(n_steps, n_envs, dtype=torch.bool)
    for t, b in true:
        column[t, b] = True
    return column
