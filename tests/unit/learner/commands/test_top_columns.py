import pytest
from rich.cells import cell_len
from rich.text import Text

from rollcast.learner.commands.top_columns import Column, append, shown, titles, total_width

NAME = Column("name", 6, 20, "left")
NUMBER = Column("number", 6, 10)


def row(values: dict[Column, str]) -> str:
    text = Text("x")
    append(text, (NAME, NUMBER), values)
    return text.plain


def test_columns_leave_frames_that_are_too_narrow():
    assert shown((NAME, NUMBER), 20) == (NAME, NUMBER)
    assert shown((NAME, NUMBER), 19) == (NUMBER,)
    assert shown((NAME, NUMBER), 9) == ()


def test_values_stand_below_their_titles():
    assert row(titles((NAME, NUMBER))) == "x name   number"
    assert row({NAME: "abc", NUMBER: "12"}) == "x abc        12"
    assert row({NUMBER: "7"}) == "x             7"


@pytest.mark.parametrize("value", ["", "1", "123456", "1234567", "漢字漢字漢字漢字"])
def test_every_row_is_as_wide_as_its_columns(value):
    assert cell_len(row({NAME: value, NUMBER: value})) == 1 + total_width((NAME, NUMBER))


def test_long_values_are_cut():
    assert row({NAME: "abcdefgh", NUMBER: "12"}) == "x abcde…     12"
