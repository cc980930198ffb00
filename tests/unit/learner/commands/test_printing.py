import io
import json
import os
import subprocess
import sys

import pytest

from rollcast.learner.commands.printing import lossy, print_json, print_line, print_table


def test_a_table_has_columns_as_wide_as_their_longest_cell():
    output = io.StringIO()
    print_table(output, [])  # nothing
    print_table(output, [("slot", "actor"), ("0", "left-arm"), ("10", "")])
    assert output.getvalue() == "slot  actor\n0     left-arm\n10\n"


def test_line_is_neither_wrapped_nor_read_as_markup():
    output = io.StringIO()
    line = "[red]rollcast evaluate[/red] runs/" + "a-long-name" * 20 + " :smile:"
    print_line(output, line)
    assert output.getvalue() == f"{line}\n"


def test_control_characters_are_escaped():
    output = io.StringIO()
    print_line(output, "actor \x1b[2J")
    print_table(output, [("\x1b]0;x", "\u202e")])
    assert all(character.isprintable() or character == "\n" for character in output.getvalue())


def test_json_is_ascii_and_the_same_document():
    document = {"who": "\u202eactor\x9b", "n": 1}
    output = io.StringIO()
    print_json(output, document)
    assert output.getvalue().isascii()
    assert json.loads(output.getvalue()) == document


def test_closed_pipe_ends_command_without_a_traceback():
    program = "import sys; from rollcast.learner.commands.printing import print_line; print_line(sys.stdout, 'x')"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, ""), "its reader has read enough"


@pytest.fixture(params=[-1, 1], ids=["a file", "a terminal"])
def unread(request):
    """The end of a pipe that nobody reads, buffered as a file, or by the line as a terminal."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=request.param) as output:
        yield output


def test_lossy_output_warns_once_and_drops_what_comes_after(unread, caplog):
    output = lossy(unread)
    for line in ("one", "two", "three"):
        print_line(output, line)
    (record,) = caplog.records
    expected = "the output of this command is lost from now on, and the command continues: "
    assert record.getMessage().startswith(expected)
    assert output.isatty() is False, "in all else it is the output"
