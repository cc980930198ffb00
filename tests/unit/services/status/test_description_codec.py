"""A learner's description as protobuf."""

import dataclasses

from rollcast.services.policies.policies import PolicySpec
from rollcast.services.status.description import LearnerDescription, LearnerLimits
from rollcast.services.status.description_codec import description_from_proto, description_to_proto
from tests.rollouts import NESTED

DESCRIPTION = LearnerDescription(
    spaces=NESTED,
    policy=PolicySpec(hidden_sizes=(3,), head="q_values"),
    n_rollout_steps=5,
    batch_size=6,
    n_envs=7,
    algorithm="dqn",
    software_version="1",
)


def test_description_comes_back():
    limits = LearnerLimits(max_actors=3, calls_per_second=0.5)
    assert (limits.max_actors, limits.max_message_bytes) == (3, 4 << 20)
    assert description_from_proto(description_to_proto(dataclasses.replace(DESCRIPTION, limits=limits))) == (
        dataclasses.replace(DESCRIPTION, limits=limits)
    )
