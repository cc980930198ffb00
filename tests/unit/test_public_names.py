import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, blocks, text_of

PACKAGES = ("rollcast.services", "rollcast.actor", "rollcast.learner")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> types.ModuleType:
    return importlib.import_module(request.param)


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Returns the module of each name that some code imports from rollcast."""
    return {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "rollcast"
        for alias in node.names
    }


def test_exports_are_sorted_and_unique(package: types.ModuleType):
    # as ruff sorts them: constants, classes, functions
    in_order = sorted(set(package.__all__), key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert list(package.__all__) == in_order
    assert dir(package) == sorted(package.__all__)


def test_every_export_has_a_docstring(package: types.ModuleType):
    for name in package.__all__:
        value = getattr(package, name)
        assert getattr(value, "__doc__", None), f"{package.__name__}.{name}"


def test_type_checkers_see_the_modules_that_python_imports(package: types.ModuleType):
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (seen,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    assignment = _imported_names(seen)
    assert assignment.keys() == set(package.__all__)
    for name, module in assignment.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name), f"{module}.{name}"


def test_unknown_name_is_an_attribute_error(package: types.ModuleType):
    with pytest.raises(AttributeError, match=rf"{package.__name__}' has no attribute 'Impalla'"):
        _ = package.Impalla


def test_importing_the_packages_loads_no_library():
    program = f"import sys, {', '.join(PACKAGES)}\n"
    program += "loaded = {'torch', 'grpc', 'google', 'numpy', 'gymnasium', 'pydantic'} & set(sys.modules)\n"
    program += "assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_examples_import_exported_names_only():
    for path in EXAMPLES:
        _check_imports(path.name, ast.parse(path.read_text(encoding="utf-8")))


def test_pages_import_exported_names_only():
    for name in PAGES:
        for block in blocks(text_of(name), "python"):
            _check_imports(name, ast.parse(block))


def _check_imports(where: str, tree: ast.AST) -> None:
    for name, module in _imported_names(tree).items():
        if module.startswith("rollcast.v1"):
            continue  # the generated stubs: for programs that read the protocol's messages themselves
        assert module in PACKAGES, f"{where}: from {module} import {name}: import it from one of {PACKAGES}"
        assert name in importlib.import_module(module).__all__, f"{where}: {module} does not export {name}"
