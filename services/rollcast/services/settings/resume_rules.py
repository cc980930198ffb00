"""Defines the rules for changing a setting when a run is resumed.

Each setting declares its rule at its field.
"""

from typing import Final

from pydantic import JsonValue
from pydantic.fields import FieldInfo

# A field stores the rule as `json_schema_extra`, which must be plain JSON for type checkers.
ResumeRule = dict[str, JsonValue]

_KEY: Final = "on_resume"
_WHY: Final = "why_not"

# The setting may change, because learning does not depend on it.
FREE: Final[ResumeRule] = {_KEY: "free"}
# The setting may change. It determines the actors, their placement, and the end of training, so later numbers differ.
ACTING: Final[ResumeRule] = {_KEY: "acting"}
# The setting may change. It determines how the resumed run learns.
LEARNING: Final[ResumeRule] = {_KEY: "learning"}


def stays(why: str) -> ResumeRule:
    """Makes the rule of a setting that must not change.

    Args:
        why: The reason, as the text after "because".
    """
    return {_KEY: "stays", _WHY: why}


def resume_rule(field: FieldInfo) -> ResumeRule | None:
    """Returns the rule of a setting; None if its field has none.

    Args:
        field: The setting's field.
    """
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) and _KEY in extra else None


def why_not(rule: ResumeRule) -> str:
    """Returns the reason why a setting must not change; empty if it may change."""
    return str(rule.get(_WHY, ""))
