"""The tests mirror the rooms: each module has its test file, or tests/README.md says where it is tested."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import ROOT

README = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
PACKAGES = {name: ROOT / name / "rollcast" / name for name in ("services", "actor", "learner")}
# Test files are named `test_main`, not `test___main__`.
OWN_NAMES = {"__main__": "main"}


def modules() -> dict[str, Path]:
    """Returns `package/room/module` -> its file."""
    return {
        f"{name}/{path.relative_to(folder).with_suffix('').as_posix()}": path
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }


def expanded(pattern: str) -> list[str]:
    """Returns `a/b` and `a/c` for `a/{b,c}`."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    # what stands outside braces holds no comma
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def rows(heading: str) -> Iterator[tuple[list[str], str]]:
    """Yields the names in the first column of a table, and the second column."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for first, second in re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE):
        yield [name for code in re.findall(r"`(.*?)`", first) for name in expanded(code)], second


MODULES = modules()
ELSEWHERE = {name: second for names, second in rows("Modules without a test file of their own name") for name in names}
WITHOUT_MODULE = {name for names, _ in rows("Test files that name no module") for name in names}


def own_test_of(module: str) -> str:
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{OWN_NAMES.get(name, name)}"


def exists(test_file: str) -> bool:
    return (ROOT / "tests" / "unit" / f"{test_file}.py").is_file()


def test_each_module_has_a_test_file_or_a_line_that_says_where_it_is_tested():
    missing = sorted(name for name in MODULES if not exists(own_test_of(name)) and name not in ELSEWHERE)
    assert not missing, f"{missing}: write tests/unit/ROOM/test_NAME.py, or say in tests/README.md what covers it"


def test_no_line_names_a_module_that_has_a_test_file_or_is_gone():
    needless = sorted(name for name in ELSEWHERE if name not in MODULES or exists(own_test_of(name)))
    assert not needless, f"remove from tests/README.md: {needless}"


def test_each_line_names_tests_that_exist():
    for module, second in ELSEWHERE.items():
        tests = [path for code in re.findall(r"`(.*?)`", second) for path in expanded(code)]
        assert tests or second == "values", f"{module}: {second}"
        gone = [path for path in tests if not (ROOT / "tests" / path).is_file()]
        assert not gone, f"{module}: tests/{gone}"


@pytest.mark.parametrize("module", sorted(name for name, second in ELSEWHERE.items() if second == "values"))
def test_modules_of_values_decide_nothing(module: str):
    decisions = [
        node for node in ast.walk(ast.parse(MODULES[module].read_text())) if isinstance(node, ast.If | ast.Raise)
    ]
    assert not decisions, f"{module} decides something in line {decisions[0].lineno}; say which tests cover it"


def test_each_test_file_names_a_module_or_is_listed_with_its_reason():
    named = {own_test_of(module) for module in MODULES}
    unit = ROOT / "tests" / "unit"
    found = {
        path.relative_to(unit).with_suffix("").as_posix()
        for name in PACKAGES
        for path in (unit / name).rglob("test_*.py")
    }
    assert found - named == WITHOUT_MODULE, "tests/README.md, 'Test files that name no module'"
