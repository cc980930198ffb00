"""Twelve behaviours are where docs/development/architecture.md says, each in one module."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.documents import section_of
from tests.processes import ROOT

SECTION = section_of("architecture.md", "Where is it?")
# | behaviour | `package/room/module` | `name` or `Class.method` |
ROWS = re.findall(r"^\| ([^|]+) \| `([\w/]+)` \| `([\w.]+)` \|$", SECTION.partition("\n## ")[0], re.MULTILINE)


def defined_in(tree: ast.Module) -> set[str]:
    """Returns the names of a module's classes and functions, and of methods as `Class.method`."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    outer = [node for node in tree.body if isinstance(node, kinds)]
    inner = {
        f"{node.name}.{member.name}"
        for node in outer
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, kinds)
    }
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    return {node.name for node in outer} | inner | constants


@functools.cache
def sources() -> dict[Path, str]:
    files = [path for root in ("services", "actor", "learner") for path in (ROOT / root / "rollcast").rglob("*.py")]
    return {file: file.read_text(encoding="utf-8") for file in files}


def test_the_table_has_all_twelve_behaviours():
    assert len(ROWS) == 12


@pytest.mark.parametrize(("behaviour", "module", "name"), ROWS)
def test_a_behaviour_is_in_the_module_that_is_named_and_in_no_other(behaviour: str, module: str, name: str):
    package, _, path = module.partition("/")
    expected = ROOT / package / "rollcast" / package / f"{path}.py"
    last = name.rpartition(".")[2]
    # parsing all files takes seconds
    found = [file for file, text in sources().items() if last in text and name in defined_in(ast.parse(text))]
    assert found == [expected], f"{behaviour}: {name}"
