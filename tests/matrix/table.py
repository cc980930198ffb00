"""Makes the tables of the documentation that say what goes with what, from the rules that `make matrix` tries."""

from typing import Final

from tests.documents import ROOT
from tests.matrix.axes import BY_NAME, Value
from tests.matrix.covering import goes_with
from tests.matrix.rules import RULES

PAGE: Final = ROOT / "docs" / "reference" / "support_matrix.md"
_BEGIN: Final = "<!-- made by `make matrix ARGS=--record` -->\n"
_END: Final = "<!-- the end of what it made -->\n"

# The rows of the table, and their names.
_ROWS: Final = {
    "env.action": "actions",
    "env.observation": "observations",
    "env.mask": "an action mask",
    "env.agents": "agents",
    "actor_kind": "`--actor-kind`",
    "network": "`--network`",
    "recurrence": "`--recurrence`",
    "frame_stack": "`--frame-stack`",
    "normalize_observations": "`--normalize-observations`",
    ".normalize_rewards": "normalised rewards",
    "replay.entry": "`--replay.entry`",
    "vectorization": "`--vectorization`",
    "updates_per_broadcast": "`--updates-per-broadcast`",
    "max_policy_lag": "`--max-policy-lag`",
    "eval_interval_steps": "`--eval-interval-steps`",
    "durable": "`--durable`",
    "deterministic": "`--deterministic`",
}
_OWN: Final = "your own"


def support() -> str:
    """Returns a table: a row for each choice, and a column for each algorithm."""
    algorithms = [str(value) for value in BY_NAME["algorithm"].values]
    built_in, own = [a for a in algorithms if ":" not in a], [a for a in algorithms if ":" in a]
    lines = [f"| | {' | '.join((*built_in, _OWN))} |", "|" + "---|" * (len(built_in) + 2)]
    for name, title in _ROWS.items():
        rows: dict[tuple[bool, ...], list[str]] = {}
        for value in BY_NAME[name].values[_first(name) :]:
            alone = [_goes(algorithm, name, value) for algorithm in algorithms]
            cells = (*alone[: len(built_in)], any(alone[-len(own) :]))
            rows.setdefault(cells, []).append(_word(value))
        for cells, values in rows.items():
            words = "" if values == ["on"] else f": {', '.join(values)}"
            lines.append(f"| {title}{words} | {' | '.join('yes' if cell else '-' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _first(name: str) -> int:
    """Returns the index of the first value that is worth a row: that of a switch is on."""
    return int(BY_NAME[name].values[0] in (False, None, 1, "none"))


def _goes(algorithm: str, name: str, value: Value) -> bool:
    return goes_with({"algorithm": algorithm, name: value}) is not None


def _word(value: Value) -> str:
    if value is True:
        return "on"
    return _OWN if ":" in str(value) else str(value)


def page() -> str:
    """Returns the page with the table and what is refused in the place of what was made last."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    refused = "".join(f"- {rule.words}\n" for rule in RULES if rule.words)
    return f"{before}{_BEGIN}\n{support()}\nRefused at the start, too:\n\n{refused}\n{_END}{after}"
