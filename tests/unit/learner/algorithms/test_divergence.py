import pytest
import torch

from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.services.errors import RollcastError


@pytest.fixture
def watch() -> DivergenceWatch:
    return DivergenceWatch(("policy loss", "value loss"), device=torch.device("cpu"), advice="Do less.")


def test_finite_numbers_pass(watch):
    for value in (0.0, -1e30, 1e30):
        watch.observe(torch.tensor(value), torch.tensor(value))
    watch.check()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_error_names_diverged_value_and_stays(watch, value):
    with pytest.raises(RollcastError, match=r"within 1 updates: value loss not finite; .* Do less\."):
        watch.observe(torch.tensor(1.0), torch.tensor(value))
    with pytest.raises(RollcastError, match="within 2 updates: value loss"):
        watch.observe(torch.tensor(1.0), torch.tensor(1.0))
    watch.clear()
    watch.check()
