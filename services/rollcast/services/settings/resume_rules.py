"""What a setting may be when a run is resumed: each setting says it at its own field, as `json_schema_extra`."""

from typing import Final

from pydantic import JsonValue
from pydantic.fields import FieldInfo

# A type checker wants plain JSON there.
ResumeRule = dict[str, JsonValue]

_KEY: Final = "on_resume"
_WHY: Final = "why_not"

# Nothing that is learnt depends on it.
FREE: Final[ResumeRule] = {_KEY: "free"}
# It says who acts, where, and until when: the run is the same one, but goes on to other bits.
ACTING: Final[ResumeRule] = {_KEY: "acting"}
# It says how to learn: it may change, and then the run learns in another way from there on.
LEARNING: Final[ResumeRule] = {_KEY: "learning"}


def stays(why: str) -> ResumeRule:
    """Makes the rule of a setting that may not change.

    Args:
        why: The reason, which follows "because".

    Returns:
        The rule.
    """
    return {_KEY: "stays", _WHY: why}


def resume_rule(field: FieldInfo) -> ResumeRule | None:
    """Finds the rule of a setting.

    Args:
        field: The setting's field.

    Returns:
        The rule; None where the field has none.
    """
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) and _KEY in extra else None


def why_not(rule: ResumeRule) -> str:
    """Returns why a setting may not change; empty: it may."""
    return str(rule.get(_WHY, ""))
