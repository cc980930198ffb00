import io
import json

from rich.console import Console

from rollcast.learner.commands.printing import cell, print_json, print_line


def printed(print_it, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=20, force_terminal=True)
    print_it(console, *arguments)
    return console.file.getvalue()


def test_line_is_neither_wrapped_nor_read_as_markup():
    line = "[red]rollcast evaluate[/red] runs/a-long-name :smile:"
    assert printed(print_line, line) == f"{line}\n"


def test_control_characters_are_escaped():
    assert "\x1b" not in printed(print_line, "actor \x1b[2J")
    assert "\x1b" not in cell("actor \x1b[2J").plain
    assert cell("[bold]name").plain == "[bold]name"


def test_json_is_ascii_and_the_same_document():
    document = {"who": "\u202eactor\x9b", "n": 1}
    console = Console(file=io.StringIO(), width=20)
    print_json(console, document)
    text = console.file.getvalue()
    assert text.isascii()
    assert json.loads(text) == document
