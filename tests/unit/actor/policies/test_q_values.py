import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.q_values import EpsilonGreedy
from rollcast.actor.policies.torch_q_values import action_values, outputs_gradient
from rollcast.services.errors import InvalidSpaceError

SPACE = spaces.Discrete(3, start=-1, dtype=np.int32)


def test_choices_and_probabilities_have_golden_values():
    plain = EpsilonGreedy(SPACE, dueling=False, epsilon=0.3)
    values = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(plain.mode(values), [0, -1])
    assert plain.mode(values).dtype == np.int32
    log_prob = plain.log_prob(values, np.array([0, 1]))
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, np.log([0.8, 0.1]), rtol=1e-6)
    assert plain.log_prob(np.zeros((5, 4, 3)), np.zeros((5, 4))).shape == (5, 4)


def test_observation_value_of_dueling_head_does_not_change_choices():
    dueling = EpsilonGreedy(SPACE, dueling=True)
    assert (dueling.n_outputs, dueling.n_parameters) == (4, 4)
    outputs = np.array([[100.0, 1.0, 3.0, 2.0], [-100.0, 5.0, 0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(dueling.mode(outputs), [0, -1])
    values = action_values(torch.from_numpy(outputs), "dueling_q_values")
    np.testing.assert_allclose(values[0], [99.0, 101.0, 100.0])
    np.testing.assert_array_equal(values.argmax(dim=1) - 1, dueling.mode(outputs))


def test_log_prob_of_impossible_choices_stays_finite():
    assert np.isfinite(EpsilonGreedy(SPACE, dueling=False).log_prob(np.zeros((1, 3), np.float32), np.array([1]))).all()


@pytest.mark.parametrize("head", ["q_values", "dueling_q_values"])
def test_gradient_equals_autograd(head):
    outputs = torch.randn(7, 3 if head == "q_values" else 4, requires_grad=True)
    index, gradient = torch.randint(0, 3, (7,)), torch.randn(7)
    value = action_values(outputs, head).gather(1, index[:, None]).squeeze(1)
    (expected,) = torch.autograd.grad(value, outputs, gradient)
    torch.testing.assert_close(outputs_gradient(index, gradient, 3, head), expected)


def test_rejects_other_spaces():
    with pytest.raises(InvalidSpaceError, match="choose --algorithm ppo, appo or impala, which support this space"):
        EpsilonGreedy(spaces.MultiDiscrete([2, 2]), dueling=False)
