"""The matrix knows all that may be chosen, and the documentation says what it says."""

import inspect
from typing import Literal

import gymnasium
import pytest
from gymnasium import spaces
from pydantic import Field

from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import ALGORITHMS
from tests.matrix.axes import BY_NAME, options_with_choices
from tests.matrix.environments import ACTIONS, OBSERVATIONS
from tests.matrix.table import PAGE, page


class WithMore(TrainSettings):
    """Settings with an option more."""

    taste: Literal["sweet", "sour"] = Field("sweet")
    patience: int | None = Field(None)


def test_every_algorithm_is_a_choice():
    assert ALGORITHMS.keys() <= set(BY_NAME["algorithm"].values)


def test_a_new_option_belongs_to_the_matrix():
    with pytest.raises(AssertionError, match="the option patience may be left out: say in _GIVEN"):
        options_with_choices(WithMore)


def test_every_kind_of_space_is_a_choice():
    kinds = {kind for _, kind in inspect.getmembers(spaces, inspect.isclass) if issubclass(kind, gymnasium.Space)}
    kinds.discard(gymnasium.Space)
    for choices in (ACTIONS, OBSERVATIONS):
        assert {type(space) for space in choices.values()} == kinds


def test_the_documentation_says_what_goes_together():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make matrix ARGS=--record"
