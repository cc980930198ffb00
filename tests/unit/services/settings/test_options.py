"""The options of a settings class."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from rollcast.services.settings.options import Takes, option_name, options_of, variable_name


class Inner(BaseModel):
    """Nested settings."""

    learning_rate: float = Field(0.1, description="The step size.")


class Outer(BaseModel):
    """Settings."""

    seed: int
    fast: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    file: Path | None = None
    sizes: tuple[int, ...] = (64, 64)
    gamma: Annotated[float, Field(gt=0)] = 0.99
    inner: Inner = Field(default_factory=Inner)


OPTIONS = {option.name: option for option in options_of(Outer, {"gamma": 0.5})}


@pytest.mark.parametrize(
    ("name", "takes", "metavar", "default"),
    [
        ("--seed", Takes.VALUE, "INT", None),
        ("--fast", Takes.NOTHING, "", False),
        ("--device", Takes.CHOICE, "{cpu,cuda}", "cpu"),
        ("--file", Takes.PATH, "PATH", None),
        ("--sizes", Takes.VALUE, "INT,...", (64, 64)),
        ("--gamma", Takes.VALUE, "NUMBER", 0.5),
        ("--inner.learning-rate", Takes.VALUE, "NUMBER", 0.1),
    ],
)
def test_option_shows_type_and_default_of_its_setting(name: str, takes: Takes, metavar: str, default: object):
    option = OPTIONS[name]
    assert (option.takes, option.metavar, option.default) == (takes, metavar, default)


def test_there_is_one_option_for_each_setting():
    assert len(OPTIONS) == 7
    assert OPTIONS["--inner.learning-rate"].description == "The step size."


def test_only_a_flag_can_be_negated():
    assert OPTIONS["--fast"].spellings == ("--fast", "--no-fast")
    assert OPTIONS["--seed"].spellings == ("--seed",)


def test_names_follow_the_path():
    assert option_name(("impala", "learning_rate")) == "--impala.learning-rate"
    assert variable_name(("impala", "learning_rate")) == "ROLLCAST_IMPALA__LEARNING_RATE"
