"""Every benchmark starts: its imports exist, those inside functions, too, and it explains its options."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT

MODULES = sorted((ROOT / "benchmarks").glob("*.py"))
PROGRAMS = [path for path in MODULES if "ArgumentParser(" in path.read_text(encoding="utf-8")]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yields what a module imports from this repository: the module and the name in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in {"rollcast", "benchmarks"}:
            yield from ((node.module, alias.name) for alias in node.names)


def exists(module: str, name: str) -> bool:
    if importlib.util.find_spec(module) is None:
        return False
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_what_there_is(path: Path):
    assert [f"{module}.{name}" for module, name in imported(path) if not exists(module, name)] == []


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_explains_its_options(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", [path.stem, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{path.stem}").main()
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


@pytest.mark.slow
def test_measures_how_soon_a_killed_learner_trains_again():
    """It reaches into the trainer, which no type checker looks at."""
    command = [sys.executable, "-m", "benchmarks.resume", "--rounds", "1", "--gigabytes", "0.001"]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    assert "| in the cache " in ended.stdout
