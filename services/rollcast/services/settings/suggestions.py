"""Guesses the existing names that a mistyped name may mean."""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final

_MOST: Final = 3
# Too many names begin with fewer letters.
_LEAST_LETTERS: Final = 3
# Keeps names whose similarity is nearly that of the best.
_AS_NEAR: Final = 0.92
# Allows one letter more or less in four (`seeds`), or one wrong letter in nine.
_NEARLY_THE_SAME: Final = 0.88
_COUNTED: Final = re.compile("^--(n|num)-")


def did_you_mean(
    name: str, known: Iterable[str], preferred: Iterable[str] = (), *, shown: Callable[[str], str] = str
) -> str:
    """Returns `"did you mean A, or B?"`, or an empty string if no known name is similar.

    The function looks for five kinds of names, and returns the first kind that exists. Names that begin with the given
    name (`--n-actor`: `--n-actors`). Names that end with it (`--learning-rate`: `--impala.learning-rate`). Names whose
    last part has these initials (`--lr`). Names with a similar spelling. Names whose last part has a similar spelling
    (`--learnig-rate`).

    Args:
        name: The typed name.
        known: The names that exist.
        preferred: The known names that are more likely.
        shown: Returns a guess as the user would write it.
    """
    negated = name.startswith("--no-")
    known = [other for other in dict.fromkeys(known) if other.startswith("--no-") == negated or other == name]
    ends = {other: _end(other) for other in known}
    guesses = (
        _begun(name, known)
        or [other for other, end in ends.items() if f"-{end}".endswith(f"-{_end(name)}")]
        or [other for other, end in ends.items() if _has_initials(end, _end(name))]
        or _spelt_like(name, known)
        or [other for other, end in ends.items() if end in _spelt_like(_end(name), set(ends.values()))]
    )
    group = f"{name.rpartition('.')[0]}."
    in_group = [other for other in guesses if other.startswith(group)]
    likely = set(preferred)
    guesses = in_group or [other for other in guesses if other in likely] or guesses
    return f"did you mean {', or '.join(map(shown, guesses[:_MOST]))}?" if guesses else ""


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Returns whether a name certainly means a known name, by nearly equal spelling, last part, or initials.

    Args:
        name: An unknown option, which may be valid in another process.
        known: The options of this process.
    """
    bare = name.lstrip("-")
    known = [other.lstrip("-") for other in known]
    # has no group, so it is not a setting of another process's group
    ends = [] if "." in bare else [_end(other) for other in known]
    spellings = [other.replace(".", "-") for other in known] + ends
    return any(_has_initials(end, bare) for end in ends) or bool(
        difflib.get_close_matches(bare.replace(".", "-"), spellings, n=1, cutoff=_NEARLY_THE_SAME)
    )


def is_begun(name: str, known: Iterable[str]) -> bool:
    """Returns whether known names begin with a name: it may be meant for them, or be of no concern."""
    return bool(_begun(name, known))


def _end(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2]


def _begun(name: str, known: Iterable[str]) -> list[str]:
    """Returns the names that begin with the given name, else with what it counts: `--n-envs`: `--envs-per-actor`."""
    known = list(known)
    for start in (name, _COUNTED.sub("--", name)):
        begun = [other for other in known if len(start.lstrip("-")) >= _LEAST_LETTERS and other.startswith(start)]
        if begun:
            return begun
    return []


def _has_initials(end: str, initials: str) -> bool:
    """Returns whether the last words of a name begin with these letters: `policy-learning-rate` with `lr`."""
    return len(initials) > 1 and "".join(word[:1] for word in end.split("-")).endswith(initials)


def _spelt_like(name: str, known: Iterable[str]) -> list[str]:
    """Returns the most similar name, and other names that are nearly as similar."""
    lower = {other.lower(): other for other in known}
    names = difflib.get_close_matches(name.lower(), lower, n=_MOST, cutoff=0.7)
    nearness = {other: difflib.SequenceMatcher(None, name.lower(), other).ratio() for other in names}
    return [lower[other] for other in names if nearness[other] >= _AS_NEAR * nearness[names[0]]]
