"""A docstring says what a thing does or is; it does not begin with a question word."""

import ast
import re
from pathlib import Path

import pytest

from tests.processes import ROOT

QUESTION = re.compile(
    r"(Who|Whose|Whoever|What|Whatever|How|Whether|Where|Which|When|Why|That|Those|Nobody|Everybody|One who|Told)\b"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FILES = sorted(path for name in ("services", "actor", "learner") for path in (ROOT / name / "rollcast").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_begins_with_a_question_word(path: Path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, DOCUMENTED)]
    found = [first for node in nodes if QUESTION.match(first := (ast.get_docstring(node) or "").partition("\n")[0])]
    assert not found, f"begin with what it does or is: {found}"
