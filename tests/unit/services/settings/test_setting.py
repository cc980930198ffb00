from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.options import options_of
from rollcast.services.settings.resume_rules import FREE, LEARNING, resume_rule, stays, why_not
from rollcast.services.settings.setting import setting


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


def test_keeps_the_bounds_of_the_type():
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Example(n_steps=0)


def test_gives_each_object_a_dictionary_of_its_own():
    Example().options["gravity"] = 0.0
    assert Example().options == {"gravity": 9.8}
