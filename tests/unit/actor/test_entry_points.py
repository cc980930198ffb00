import math

import pytest

from rollcast.actor.entry_points import load_entry_point
from rollcast.services.errors import ConfigurationError

HERE = "tests.unit.actor.sample_environments"


def test_loads_what_is_named():
    assert load_entry_point("math:sqrt") is math.sqrt
    assert load_entry_point("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}


@pytest.mark.parametrize("name", ["", "math", "math:", ":sqrt", "a b:c", ".relative:name", "math..x:sqrt"])
def test_malformed(name):
    with pytest.raises(ConfigurationError, match=r"malformed; expected 'package.module:name'"):
        load_entry_point(name)


def test_module_missing():
    with pytest.raises(ConfigurationError, match=r"no module 'nowhere'.*PYTHONPATH"):
        load_entry_point("nowhere.at_all:name")


def test_attribute_missing_lists_what_there_is():
    with pytest.raises(ConfigurationError, match=r"no attribute 'NumberdEnv'.*NumberedEnv"):
        load_entry_point(f"{HERE}:NumberdEnv")


def test_not_callable():
    with pytest.raises(ConfigurationError, match="is a int; expected a callable"):
        load_entry_point(f"{HERE}:not_callable")


def test_errors_inside_the_module_are_its_own(tmp_path, monkeypatch):
    (tmp_path / "broken_module_of_test.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        load_entry_point("broken_module_of_test:name")
