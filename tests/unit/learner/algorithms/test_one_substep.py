import pytest

from rollcast.learner.algorithms.one_substep import columns_of, only_substep
from rollcast.services.errors import ConfigurationError
from tests.batches import SPACES, make_batch


def test_returns_the_only_substep():
    assert only_substep(SPACES, algorithm="SAC") == "0"


def test_rejects_several_substeps():
    with pytest.raises(ConfigurationError, match=r"2 substeps \['blue', 'red'\]; SAC supports exactly 1"):
        only_substep({"red": SPACES["0"], "blue": SPACES["0"]}, algorithm="SAC")


def test_returns_the_columns_of_the_substep():
    batch = make_batch()
    assert columns_of(batch, "0") is batch.substeps["0"]


def test_rejects_batch_of_another_substep():
    with pytest.raises(ConfigurationError, match=r"holds the substeps \['0'\]; expected \['red'\]"):
        columns_of(make_batch(), "red")
