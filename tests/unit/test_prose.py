"""A docstring says what a thing does or is; it does not begin with a question word."""

import ast
import re
from pathlib import Path

from tests.processes import ROOT

QUESTION = re.compile(
    r"(Who|Whose|Whoever|What|Whatever|How|Whether|Where|Which|When|Why|That|Those|Nobody|Everybody|One who|Told)\b"
)
# No other file is parsed: that takes seconds.
SUSPECT = re.compile(rf"[\"']\s*{QUESTION.pattern}")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ROOMS = ("services", "actor", "learner", "tests", "benchmarks", "examples", "docs")
FILES = sorted(path for name in ROOMS for path in (ROOT / name).rglob("*.py"))


def first_lines(path: Path) -> list[str]:
    """Returns the first lines of a file's docstrings; none if no string in it begins with a question word."""
    source = path.read_text(encoding="utf-8")
    if not SUSPECT.search(source):
        return []
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    return [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]


def test_no_docstring_begins_with_a_question_word():
    assert FILES
    found = [
        f"{path.relative_to(ROOT)}: {line}" for path in FILES for line in first_lines(path) if QUESTION.match(line)
    ]
    assert not found, "begin with what it does or is:\n" + "\n".join(found)
