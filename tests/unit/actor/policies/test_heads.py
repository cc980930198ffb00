import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies.action_masks import FORBIDDEN
from rollcast.actor.policies.heads import head_distribution
from rollcast.actor.policies.q_values import EpsilonGreedy, MaskedEpsilonGreedy
from rollcast.actor.policies.squashed_gaussian import SquashedGaussian
from rollcast.services.errors import InvalidSpaceError
from rollcast.services.spaces.spaces import SubstepSpaces

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
MASKED = spaces.Dict(seen=VECTOR, action_mask=spaces.MultiBinary(3))
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


def test_q_values_of_masked_actions_explore_allowed_actions_only():
    distribution = head_distribution(substep(spaces.Discrete(3), MASKED), "q_values", epsilon=1.0)
    assert type(distribution) is MaskedEpsilonGreedy
    parameters = np.tile(np.array([1.0, FORBIDDEN, 0.0], np.float32), (200, 1))
    assert set(distribution.sample(parameters, np.random.default_rng(0)).tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("head", "action"), [("q_values", BOX), ("squashed_gaussian", spaces.Discrete(3))], ids=["values", "gaussian"]
)
def test_rejects_spaces_that_the_head_cannot_act_in(head, action):
    with pytest.raises(InvalidSpaceError, match="the action space is"):
        head_distribution(substep(action), head)
