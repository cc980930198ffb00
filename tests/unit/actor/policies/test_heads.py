import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies.heads import head_distribution
from rollcast.actor.policies.q_values import EpsilonGreedy
from rollcast.actor.policies.squashed_gaussian import SquashedGaussian
from rollcast.services.spaces.spaces import SubstepSpaces

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


def substep(action, observation=VECTOR) -> SubstepSpaces:
    return SubstepSpaces(observation=observation, action=action)


@pytest.mark.parametrize(
    ("head", "action", "kind", "n_outputs", "n_parameters"),
    [
        ("default", BOX, None, 2, 4),
        ("squashed_gaussian", BOX, SquashedGaussian, 4, 4),
        ("q_values", spaces.Discrete(3), EpsilonGreedy, 3, 3),
        ("dueling_q_values", spaces.Discrete(3), EpsilonGreedy, 4, 4),
    ],
)
def test_head_decides_distribution_and_number_of_outputs(head, action, kind, n_outputs: int, n_parameters: int):
    distribution = head_distribution(substep(action), head)
    assert kind is None or type(distribution) is kind
    assert (distribution.n_outputs, distribution.n_parameters) == (n_outputs, n_parameters)
