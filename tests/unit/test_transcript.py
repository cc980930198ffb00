"""Sessions are read from pages, and their output is compared line by line; a screen shows what a terminal does."""

import re

import pytest

from tests.screen import ASKS, Screen
from tests.transcript import Entry, File, pattern_of, session

PAGE = """
Save it:

```python
# play.py
print(1)
```

Run it (your numbers differ):

```console
left$ python play.py \\
    --twice
return 3.5
...
left$ ^C
```

```console
$ cat > file <<END
$ not typed
END
```
"""


def test_a_session_has_files_commands_keys_and_what_they_show():
    assert session(PAGE) == [
        File("play.py", "# play.py\nprint(1)\n"),
        Entry("left", "python play.py \\\n    --twice", ("return 3.5", "..."), differs=True),
        Entry("left", "^C", (), differs=True),
        Entry("", "cat > file <<END\n$ not typed\nEND", (), differs=False),
    ]


@pytest.mark.parametrize(
    ("line", "shown", "differs", "matches"),
    [
        ("mean return    477.0 (solved)", "mean return    1.0 (solved)", True, True),
        ("mean return    477.0 (solved)", "mean return    1.0 (solved)", False, False),
        ("mean return    477.0 (solved)", "mean return    1.0 (not solved)", True, False),
        ("2026-11-27 16:23:06,420 INFO joined", "2027-01-01 00:00:00,001 INFO joined", True, True),
        ("policy  v263  lag max  3", "policy  v31  lag max  12", True, True),
        ("policy  v263  lag max  3", "policy  w263  lag max  3", True, False),
        ("joined a20c", "joined a31c", True, False),
        ("to steps  ##......  1,000", "to steps  ########  9", True, True),
        ("left ... end", "left AAcAS w 3 end", True, True),
        ("left ... end", "right AAcAS w 3 end", True, False),
    ],
)
def test_numbers_match_others_only_where_the_page_says_so(line: str, shown: str, differs: bool, matches: bool):
    assert bool(re.fullmatch(pattern_of((line,), differs=differs), f"{shown}\n")) == matches


def test_a_line_that_is_missing_or_too_many_is_found():
    pattern = pattern_of(("first", "...", "last"), differs=False)
    assert re.fullmatch(pattern, "first\nany\nmore\nlast\n")
    assert re.fullmatch(pattern, "first\nlast\n")
    assert not re.fullmatch(pattern, "first\nany\nlast\nmore\n")
    assert not re.fullmatch(pattern, "any\nlast\n")


def test_a_view_that_is_drawn_again_is_on_the_screen_once_also_if_it_arrives_byte_by_byte():
    screen = Screen()
    for character in f"log\r\n\x1b[1mview\x1b[0m 1\r\nend\r\x1b[2K\x1b[1A\x1b[2Kview 2\r\nend\r\n{ASKS}":
        screen.feed(character)
    assert screen.lines == ["log", "view 2", "end", ""]
    assert screen.asked == 1


def test_the_other_screen_leaves_the_first_as_it_was():
    screen = Screen()
    screen.feed("before\r\n\x1b[?1049h\x1b[Htop\r\nrows")
    assert screen.lines == ["top", "rows"]
    screen.feed("\x1b[?1049lafter")
    assert screen.lines == ["before", "after"]
