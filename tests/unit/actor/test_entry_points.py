import math
import sys
from pathlib import Path

import pytest

from rollcast.actor.entry_points import load_entry_point
from rollcast.services.errors import ConfigurationError

HERE = "tests.unit.actor.sample_environments"


def test_loads_what_is_named():
    assert load_entry_point("math:sqrt") is math.sqrt
    assert load_entry_point("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(
            (name, r"malformed; expected 'package.module:name'")
            for name in ("", "math", "math:", ":sqrt", "a b:c", ".relative:name", "math..x:sqrt")
        ),
        ("nowhere.at_all:name", r"no module 'nowhere'.*PYTHONPATH"),
        (f"{HERE}:NumberdEnv", r"no attribute 'NumberdEnv'.*NumberedEnv"),
        (f"{HERE}:not_callable", "is a int; expected a callable"),
    ],
)
def test_rejects_name_of_nothing_that_can_be_called(name, message):
    with pytest.raises(ConfigurationError, match=message):
        load_entry_point(name)


def test_module_of_the_current_folder_comes_before_an_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    installed, mine = tmp_path / "installed", tmp_path / "mine"
    for folder in (installed, mine):
        folder.mkdir()
        (folder / "thermostat_of_test.py").write_text(f"def make(): return {folder.name!r}\n")
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    monkeypatch.chdir(mine)
    assert load_entry_point("thermostat_of_test:make")() == "mine"


def test_current_folder_is_not_searched_for_a_module_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no nowhere.py in this folder"):
        load_entry_point("nowhere:make")
    assert str(tmp_path) not in sys.path


def test_errors_inside_the_module_are_its_own(tmp_path, monkeypatch):
    (tmp_path / "broken_module_of_test.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        load_entry_point("broken_module_of_test:name")


def test_a_folder_of_the_modules_name_is_told_apart_from_the_module(tmp_path, monkeypatch):
    (tmp_path / "folder_of_test").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"is a folder, '.*folder_of_test'; .*no folder_of_test.py in this"):
        load_entry_point("folder_of_test:make")
