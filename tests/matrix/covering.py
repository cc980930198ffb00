"""Chooses few cases in which every two choices that go together stand together once."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import lru_cache
from typing import Final

from tests.matrix.axes import AXES, BY_NAME, Case, Value, drawn, plainest
from tests.matrix.rules import RULES, Rule, reasons

# Axes that decide which others there are.
_FIRST: Final = ("algorithm", "env.agents", "replay.entry")

_CANDIDATES: Final = 12
# Choices that stand together with each other in `make test`; the rest stands together with every algorithm there.
_MAIN: Final = (
    *("algorithm", "env.action", "env.observation", "env.mask", "env.agents", "env.is_registered", "recurrence"),
    *("frame_stack", "normalize_observations", ".normalize_rewards", "vectorization", "deterministic"),
    *("replay.entry", "replay.sampler", "replay.samples_per_insert", "replay.max_times_sampled", "replay.n_step"),
)
_TRIES: Final = 100_000
# Choices that take seconds: in `make test` they stand together with these only.
_SLOW: Final[Mapping[tuple[str, Value], tuple[str, ...]]] = {
    ("vectorization", "measure"): ("env.mask", "env.is_registered"),
}

Pair = frozenset[tuple[str, Value]]


def has(case: Case, chosen: Case) -> bool:
    """Returns whether a case has the chosen values."""
    return all(name in case and case[name] == value for name, value in chosen.items())


def goes_with(chosen: Case) -> Case | None:
    """Returns a case with the chosen values that is not refused, as plain as possible; None if none was found."""
    firsts = [(name, BY_NAME[name].values) for name in _FIRST if name not in chosen]
    for values in itertools.product(*(values for _, values in firsts)):
        case = plainest({**chosen, **dict(zip((name for name, _ in firsts), values, strict=True))})
        if not has(case, chosen):
            continue
        if any(rule.holds(case) and chosen.keys() >= {*rule.on} for rule in RULES):
            return None
        if (mended := _mended(case, chosen)) is not None:
            return mended
    return None


def _mended(case: Case, chosen: Case, *, but: Rule | None = None) -> Case | None:
    """Returns the case with other values than the chosen ones changed, one after the other, until it is not refused.

    Args:
        chosen: The values that stay.
        but: A reason to refuse that stays, too.
    """

    def left(case: Case) -> list[Rule]:
        return [rule for rule in reasons(case) if rule is not but]

    while found := left(case):
        others = [
            {**case, name: value}
            for name in found[0].on
            if name in case and name not in chosen and name not in _FIRST
            for value in BY_NAME[name].values
        ]
        best = min(others, key=lambda other: len(left(other)), default=case)
        if len(left(best)) >= len(found):
            return None
        case = best
    return case


def pairs_of(case: Case) -> Iterator[Pair]:
    """Yields the pairs of choices of a case."""
    return map(frozenset, itertools.combinations(case.items(), 2))


@lru_cache(maxsize=2)
def covering(*, only_main: bool = False) -> tuple[Case, ...]:
    """Returns cases, none of which is refused, that have every pair of choices that go together.

    Args:
        only_main: Only pairs of the main choices, and of each other choice with each algorithm.
    """
    generator = random.Random(0)
    alone = {axis.name: [value for value in axis.values if goes_with({axis.name: value}) is not None] for axis in AXES}
    missing = dict.fromkeys(
        frozenset({(one.name, a), (other.name, b)})
        for one, other in itertools.combinations(AXES, 2)
        for a, b in itertools.product(alone[one.name], alone[other.name])
        if not only_main or _is_main((one.name, a), (other.name, b))
    )
    wanted = frozenset(missing)
    cases: list[Case] = []
    while missing:
        pair = next(iter(missing))
        del missing[pair]
        if (plain := goes_with(dict(pair))) is None:
            continue
        others = (_with_others_first(dict(pair), generator) for _ in range(_CANDIDATES))
        candidates = [_enriched(case, dict(pair), missing, generator) for case in (plain, *others) if case is not None]
        best = max(candidates, key=lambda case: sum(each in missing for each in pairs_of(case)))
        for each in pairs_of(best):
            missing.pop(each, None)
        cases.append(best)
    return tuple(_needed(cases, wanted))


def _needed(cases: Iterable[Case], wanted: Set[Pair]) -> Iterator[Case]:
    """Yields cases, without those whose wanted pairs others have; of two such, the one with processes is left out."""
    n_cases = Counter(pair for case in cases for pair in pairs_of(case) if pair in wanted)
    for case in sorted(cases, key=lambda case: case["actor_kind"] == "sequential"):
        pairs = [pair for pair in pairs_of(case) if pair in wanted]
        if all(n_cases[pair] > 1 for pair in pairs):
            n_cases.subtract(pairs)
        else:
            yield case


def _is_main(one: tuple[str, Value], other: tuple[str, Value]) -> bool:
    """Returns whether a pair belongs to `make test`."""
    for choice, (name, _) in ((one, other), (other, one)):
        if choice in _SLOW:
            return name in _SLOW[choice]
    return one[0] == "algorithm" or {one[0], other[0]} <= {*_MAIN}


def _with_others_first(chosen: Case, generator: random.Random) -> Case | None:
    """Returns a case with the chosen values and random first ones; None: they do not go together."""
    firsts = {name: generator.choice(BY_NAME[name].values) for name in _FIRST if name not in chosen}
    case = plainest({**chosen, **firsts})
    return _mended(case, chosen) if has(case, chosen) else None


def _enriched(case: Case, chosen: Case, missing: Mapping[Pair, None], generator: random.Random) -> Case:
    """Returns the case with other values, if they bring more of the missing pairs and it is still not refused."""
    names = [name for name in case if name not in chosen and name not in _FIRST]
    for name in generator.sample(names, len(names)):
        items = case.items()
        gains = {
            value: sum(frozenset(((name, value), item)) in missing for item in items) for value in BY_NAME[name].values
        }
        # the plainest of the best
        best = sorted(gains, key=gains.__getitem__, reverse=True)
        case = next(other for value in best if not reasons(other := {**case, name: value}))
    return case


def refused_for(rule: Rule, generator: random.Random) -> Case:
    """Returns a plain case that is refused for this reason alone.

    Raises:
        AssertionError: None was found.
    """
    for _ in range(_TRIES):
        case = drawn({}, generator)
        if rule.holds(case):
            mended = _mended(case, {name: case[name] for name in rule.on if name in case}, but=rule)
            if mended is not None:
                return simpler(mended, lambda other: reasons(other) == [rule])
    raise AssertionError(f"no case is refused as {rule.says!r} says, and for nothing else")


def simpler(case: Case, still: Callable[[Case], bool]) -> Case:
    """Returns a case that is as plain as it can be, and of which something still holds."""
    changed = True
    while changed:
        changed = False
        plain = plainest({"algorithm": case["algorithm"]})
        for name in list(case):
            if name == "algorithm" or case.get(name) == plain.get(name) or name not in plain:
                continue
            other = plainest({**case, name: plain[name]})
            if still(other):
                case, changed = other, True
    return case
