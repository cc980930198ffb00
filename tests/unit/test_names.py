"""Modules, classes and functions have the glossary's words in their names: one word for one thing."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import ROOT, section_of

ROOMS = ("services/rollcast", "actor/rollcast", "learner/rollcast")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
DEFINED = re.compile(r"^ *(?:async def|def|class) (\w+)", re.MULTILINE)  # parsing all files takes seconds
ROW = re.compile(r"^\| (`[^|]*) \| ([^|]+) \| ([^|]*)\|$", re.MULTILINE)


class Rule(NamedTuple):
    instead: str
    exceptions: frozenset[str]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


RULES = {
    word: Rule(instead, frozenset(quoted(exceptions)))
    for words, instead, exceptions in ROW.findall(section_of("glossary.md", "Words in names"))
    for word in quoted(words)
}


def words_of(name: str) -> set[str]:
    """Returns the words in a name: `RolloutQueue` and `rollout_queue` have two."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def names_in(path: Path) -> Iterator[str]:
    yield path.stem
    yield from DEFINED.findall(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def names() -> dict[str, str]:
    """Returns every name with a file that has it."""
    return {name: str(path.relative_to(ROOT)) for path in FILES for name in names_in(path)}


def broken(name: str) -> list[str]:
    return [word for word in sorted(words_of(name) & RULES.keys()) if name not in RULES[word].exceptions]


def test_names_have_the_words_of_the_glossary(names: dict[str, str]):
    assert len(RULES) > 20, "the table was found"
    found = [
        f"{path}: {name} has {word!r}; say {RULES[word].instead}"
        for name, path in names.items()
        for word in broken(name)
    ]
    assert not found, "\n".join(found)


def test_exceptions_are_names_that_there_are(names: dict[str, str]):
    exceptions = set[str]().union(*(rule.exceptions for rule in RULES.values()))
    assert exceptions
    assert not exceptions - names.keys()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Memory", ["memory"]),
        ("hurry_up", ["hurry"]),
        ("TakeNothing", ["nothing"]),
        ("read_pieces", ["pieces"]),
        ("MemoryOfWho", ["memory", "who"]),
        ("SharedMemory", []),
        ("forecast", []),
        ("Doorbell", []),
        ("broadcast", []),
    ],
)
def test_a_word_counts_if_it_is_one(name: str, words: list[str]):
    assert broken(name) == words
