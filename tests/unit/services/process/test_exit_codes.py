import pytest

from rollcast.services.process.exit_codes import bad_settings_exit_code


@pytest.mark.parametrize(("given", "code"), [("", 2), ("0", 0), ("64", 64), ("256", 2), ("-1", 2), ("no", 2)])
def test_bad_settings_exit_with_2_unless_another_code_is_wanted(given, code):
    assert bad_settings_exit_code({"ROLLCAST_SETTINGS_EXIT_CODE": given}) == code
