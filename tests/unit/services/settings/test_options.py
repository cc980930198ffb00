from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.options import Takes, options_of
from rollcast.services.settings.resume_rules import FREE, LEARNING, resume_rule, stays, why_not
from rollcast.services.settings.setting import setting


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


def test_only_a_flag_can_be_negated():
    assert OPTIONS["--fast"].spellings == ("--fast", "--no-fast")
    assert OPTIONS["--seed"].spellings == ("--seed",)


class Example(BaseModel):
    n_steps: AtLeastOne = setting(8, "Steps.", LEARNING)
    name: str = setting("a", "The name.", stays("it is painted on the door"), examples=["a", "b"])
    options: dict[str, Any] = setting({"gravity": 9.8}, "Options.", FREE)


def test_holds_the_default_the_text_and_the_examples():
    shown = {option.name: (option.default, option.description, option.choices) for option in options_of(Example)}
    assert shown == {
        "--n-steps": (8, "Steps.", ()),
        "--name": ("a", "The name.", ("a", "b")),
        "--options": ({"gravity": 9.8}, "Options.", ()),
    }


def test_holds_the_rule_for_resumed_runs():
    rules = {name: resume_rule(field) for name, field in Example.model_fields.items()}
    assert rules["n_steps"] == LEARNING
    assert rules["options"] == FREE
    assert rules["name"] is not None
    assert why_not(rules["name"]) == "it is painted on the door"


def test_gives_each_object_a_dictionary_of_its_own():
    Example().options["gravity"] = 0.0
    assert Example().options == {"gravity": 9.8}
