import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.process.printable import PrintableFormatter, printable, printable_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ünïcode, 漢字 and 🚀 stay", "Ünïcode, 漢字 and 🚀 stay"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
        ("line\u2028break\x85", r"line\u2028break\x85"),
        ("\ud800", r"\ud800"),
    ],
)
def test_escapes_what_is_no_visible_character(text: str, expected: str):
    assert printable(text) == expected


@given(st.text(alphabet=st.characters()))
def test_every_text_becomes_one_printable_line_and_stays_it(text: str):
    line = printable(text)
    assert line.isprintable()
    assert printable(line) == line


def test_lines_of_a_traceback_stay_lines_and_are_indented():
    text = 'Traceback:\n  File "a.py", line 1\n\tboom()\nValueError: \x1b[31mred\x85\n'
    assert printable_lines(text) == (
        'Traceback:\n      File "a.py", line 1\n    \tboom()\n    ValueError: \\x1b[31mred\\x85'
    )


def formatted(message: str, *arguments: object, error: BaseException | None = None) -> list[str]:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("learner", logging.ERROR, "here.py", 1, message, arguments, info)
    return PrintableFormatter("%(asctime)s %(levelname)s %(message)s").format(record).split("\n")


def test_a_log_record_cannot_forge_another():
    forged = "2026-11-22 10:00:00,000 INFO all is well"
    first, *rest = formatted("actor %s failed:\n%s", "x\x1b[2J", f"ValueError: no\n{forged}\r{forged}")
    assert first.endswith(r"ERROR actor x\x1b[2J failed:")
    assert rest == ["    ValueError: no", f"    {forged}\\r{forged}"]


def test_the_traceback_of_a_log_record_is_escaped_and_indented():
    _, *rest = formatted("it failed", error=ValueError("\x1b]52;c;cm0gLXJm\x07\nforged"))
    assert rest[-2:] == [r"    ValueError: \x1b]52;c;cm0gLXJm\x07", "    forged"]
