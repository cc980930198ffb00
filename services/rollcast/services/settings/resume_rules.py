"""Rules for changing a setting when a run is resumed.

Each setting states its rule at its own field.
"""

from typing import Final

from pydantic import JsonValue
from pydantic.fields import FieldInfo

# A field holds it as `json_schema_extra`, for which a type checker wants plain JSON.
ResumeRule = dict[str, JsonValue]

_KEY: Final = "on_resume"
_WHY: Final = "why_not"

# May change: learning does not depend on it.
FREE: Final[ResumeRule] = {_KEY: "free"}
# May change: it decides who acts, where, and until when. The run is the same, but its numbers differ from then on.
ACTING: Final[ResumeRule] = {_KEY: "acting"}
# May change: it decides how to learn, and the run learns differently from then on.
LEARNING: Final[ResumeRule] = {_KEY: "learning"}


def stays(why: str) -> ResumeRule:
    """Makes the rule of a setting that must not change.

    Args:
        why: The reason, which follows "because".
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
    """Returns the reason why a setting must not change; empty if it may."""
    return str(rule.get(_WHY, ""))
