"""Collects what rollcast prints when something is wrong: its errors, and its log lines at WARNING and above.

The sources are parsed, not imported. `docs/howto/troubleshoot.md` has a row for each message that a user can meet, and
`page_of_messages` lists all of them for the site.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# A mark in a message for a value that only the running program knows.
VALUE: Final = "..."

_LEVELS: Final = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
_LOGGERS: Final = {"logger", "_log", "self.logger"}
# No other module is parsed: that takes seconds.
_SUSPECT: Final = re.compile(r"Error\(|\b(?:logger|_log)\.")
_DEFINES: Final = re.compile(r"^ *class \w+\([^)]*Error", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"%%|%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One message of the program.

    Attributes:
        kind: The class of the error, such as `"RefusedError"`, or the level of the log line, such as `"WARNING"`.
        text: Its words, with `...` for each value.
        module: The module that prints it, such as `"learner/serving/intake"`.
    """

    kind: str
    text: str
    module: str

    @property
    def is_logged(self) -> bool:
        """True for a log line, False for an error."""
        return self.kind in _LEVELS.values()

    @property
    def has_words(self) -> bool:
        """True if it has words of its own; otherwise it passes on another message."""
        return re.search("[A-Za-z]", self.text) is not None

    @property
    def printed(self) -> str:
        """The words as `rollcast COMMAND` prints them, after the name of the command."""
        return self.text if self.is_logged or self.kind == "ConfigurationError" else f"{self.kind}: {self.text}"


def sources() -> Iterator[tuple[str, str]]:
    """Yields the name and the text of every module of services, actor, learner and tools."""
    for package in ("services", "actor", "learner"):
        for path in sorted((ROOT / package / "rollcast").rglob("*.py")):
            name = path.relative_to(ROOT / package / "rollcast").with_suffix("").as_posix()
            yield name, path.read_text(encoding="utf-8")


def error_classes(modules: dict[str, ast.Module]) -> dict[str, str]:
    """Returns the classes of the error tree, each with its base class; the root, RollcastError, has none."""
    bases = {
        node.name: [ast.unparse(base) for base in node.bases]
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"RollcastError": ""}
    while new := {
        name: next(base for base in given if base in found)
        for name, given in bases.items()
        if name not in found and found.keys() & set(given)
    }:
        found |= new
    return found


def trees(having: re.Pattern[str]) -> Iterator[tuple[str, ast.Module]]:
    """Yields the name of each module whose text has something, and the module, parsed."""
    return ((name, ast.parse(text)) for name, text in sources() if having.search(text))


@functools.cache
def messages() -> tuple[Message, ...]:
    """Returns every message, sorted by kind and text."""
    errors = set(error_classes(dict(trees(_DEFINES))))
    return tuple(sorted({found for name, tree in trees(_SUSPECT) for found in messages_of(tree, name, errors)}))


def messages_of(tree: ast.Module, module: str, errors: set[str]) -> Iterator[Message]:
    """Yields the messages of a module: of each error that it makes, and of each line that it logs."""
    known = _constants(_own_nodes(tree))
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        own = _own_nodes(scope)
        known_here = known | _constants(own)
        for node in own:
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in errors:
                yield Message(name, _text(node.args[0], known_here) if node.args else VALUE, module)
            elif level := _level(node.func):
                yield Message(level, _logged(node.args, known_here), module)


def _level(function: ast.expr) -> str | None:
    """Returns the level of a line that a function logs; None if it logs none, or one below WARNING."""
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) in _LOGGERS:
        return _LEVELS.get(function.attr)
    return None


def _own_nodes(scope: ast.AST) -> list[ast.AST]:
    """Returns the nodes of a module or function, without those of functions inside."""
    found = [scope]
    for node in found:
        found += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]
    return found[1:]


def _constants(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Returns the texts to which a module or function gives a name, in its own nodes."""
    return {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.JoinedStr)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _logged(arguments: list[ast.expr], known: dict[str, ast.expr]) -> str:
    """Returns the text of a log line; a format that is a placeholder alone has the text of its argument."""
    text = _text(arguments[0], known)
    if text == "%s":
        return _text(arguments[1], known)
    return _joined(_PLACEHOLDER.sub(lambda found: "%" if found[0] == "%%" else VALUE, text))


def _text(node: ast.expr, known: dict[str, ast.expr]) -> str:
    """Returns the text of an expression, with `...` for what is not a literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return _joined("".join(_text(part, known) for part in parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined(_text(left, known) + _text(right, known))
        case ast.Name(id=name) if name in known:
            return _text(known[name], known)
        case _:
            return VALUE


def _joined(text: str) -> str:
    """Returns a text in which values beside each other are one."""
    return re.sub(r"(?:\.\.\.){2,}", VALUE, text)


def page_of_messages() -> str:
    """Returns the page of all messages, by their kind."""
    page = (
        "# Messages\n\n"
        "This page lists every error and every warning of rollcast. "
        f"`{VALUE}` stands for a value. [Troubleshoot](../howto/troubleshoot.md) explains those that you are likely "
        "to meet.\n\n`rollcast COMMAND` prints an error as `rollcast COMMAND: CLASS: message`. It prints a "
        "`ConfigurationError` without its class. A message says what is wrong, what was expected, and what to do.\n"
    )
    found = messages()
    kinds = _meanings()
    kinds |= {level: f"Log lines of level {level}." for level in _LEVELS.values()}
    for kind, meaning in sorted(kinds.items(), key=lambda each: (each[0].isupper(), each[0])):
        rows = [message for message in found if message.kind == kind and message.has_words]
        if rows:
            page += f"\n## {kind}\n\n{meaning}\n\n| message | expected | what to do | printed by |\n|---|---|---|---|\n"
            page += "".join(f"| {' | '.join(_cells(row))} |\n" for row in rows)
    return page


def _meanings() -> dict[str, str]:
    """Returns the first line of the docstring of each class of the error tree."""
    modules = dict(trees(_DEFINES))
    known = error_classes(modules)
    return {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in known
    }


def _cells(message: Message) -> tuple[str, str, str, str]:
    """Returns what is wrong, what was expected, what to do, and the module, as cells of a table."""
    text = " ".join(message.text.split()).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
    wrong, found, rest = text.partition("; expected ")
    if not found:
        return text, "", "", f"`{message.module}`"
    expected, _, advice = rest.partition("; ")
    return wrong, expected, advice, f"`{message.module}`"
