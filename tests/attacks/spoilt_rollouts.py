"""Rollouts to spoil: an assembler, one message with every tensor inline, and the error that is expected of it."""

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidInputError
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import rollout_to_proto
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.services.wire.tensors import tensor_to_proto
from rollcast.v1 import rollout_pb2
from tests.rollouts import NESTED, random_rollout

T, B = 3, 2
PIXELS = {"0": SubstepSpaces(observation=spaces.Box(0, 255, (256, 256), np.uint8), action=spaces.Discrete(4))}
N_STEPS, N_ENVS = 20, 4
PLAIN = {"0": SubstepSpaces(observation=spaces.Box(-1, 1, (3,), np.float32), action=spaces.Discrete(4))}


def assembler(environment=NESTED, n_steps=T, n_envs=B):
    return RolloutAssembler(RolloutShape(environment, n_steps, n_envs), actor_id="a", incarnation=1)


def message(**changes):
    return request_of(random_rollout(NESTED, T, B, **changes))


def request_of(rollout):
    """All of it inline: easier to spoil."""
    return rollout_pb2.StreamRolloutsRequest(rollout=rollout_to_proto(rollout))


def refused(request, error=InvalidInputError, match="actor 'a', rollout 1"):
    with pytest.raises(error, match=match):
        assembler().add(request)


def with_tensor(request, field, array):
    getattr(request.rollout, field).CopyFrom(tensor_to_proto(array))
    return request
