import pytest

from rollcast.learner.algorithms.one_policy import only_substep
from rollcast.services.errors import ConfigurationError
from tests.batches import SPACES


def test_returns_the_only_substep():
    assert only_substep(SPACES, algorithm="SAC") == "0"


def test_rejects_several_substeps():
    with pytest.raises(ConfigurationError, match=r"2 substeps \['blue', 'red'\]; SAC supports exactly 1"):
        only_substep({"red": SPACES["0"], "blue": SPACES["0"]}, algorithm="SAC")
