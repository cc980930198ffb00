"""Declares a setting with its default, its text in the help, and its rule for resumed runs."""

from typing import Any, TypeVar

from pydantic import Field

from rollcast.services.settings.resume_rules import ResumeRule

Value = TypeVar("Value")


def setting(default: Value, description: str, rule: ResumeRule, *, examples: list[Any] | None = None) -> Value:
    """Makes the field of a setting that a resumed run restores. The field's type defines the bounds.

    Args:
        default: The setting's default. If it is a dictionary, each object gets a copy.
        description: The text in the help.
        rule: The rule for resumed runs.
        examples: Some of the allowed values, for completion.
    """
    given: dict[str, Any] = {"default_factory": default.copy} if isinstance(default, dict) else {"default": default}
    field: Value = Field(**given, description=description, json_schema_extra=rule, examples=examples)
    return field
