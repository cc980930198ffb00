"""Collects the pages of the documentation's site in build/pages: `python -m docs.site`, then `mkdocs build`.

Pages and their links are written for the repository. The site gets copies in which a link that leaves docs/ leads to a
page made here: README, CHANGELOG, the sources that pages link to. The names that each package exports, the table of
all modules, the commands' help, and the messages of the program are pages made here, too.
"""

import contextlib
import importlib
import io
import posixpath
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from docs.messages import page_of_messages
from rollcast.learner.algorithms.defaults import DEFAULT_ALGORITHM
from rollcast.learner.training.run_parts import ALGORITHMS
from rollcast.tools.cli import main as run_command
from rollcast.tools.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
PACKAGES = ("services", "actor", "learner")
# Pages outside of docs/, and their names in the site.
NAMES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "benchmarks/README.md": "benchmarks/index.md",
    **{
        path.relative_to(ROOT).as_posix(): f"benchmarks/{path.name}"
        for path in sorted((ROOT / "benchmarks" / "pages").glob("*.md"))
    },
}
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".proto": "protobuf", ".mjs": "javascript"}
PICTURES = {".svg", ".png"}

# A link to a file, with its anchor: neither to another site nor to an anchor of the same page.
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_DOCSTRING = re.compile(r'(?:#.*\n|\s)*"""(.*?)(?:"""|\n)')


def main() -> None:
    """Writes all pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    sources = [*NAMES, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    linked: set[str] = set()
    for source in sources:
        text = (ROOT / source).read_text(encoding="utf-8")
        linked |= {_target(source, link) for link, _ in _LINK.findall(_BLOCK.sub("", text))}
        _write(_page(source), with_links(text, source))
    for path in sorted(linked - set(sources)):
        if (ROOT / path).suffix in PICTURES:
            (PAGES / _page(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, PAGES / _page(path))
        else:
            _write(_page(path), page_of_files(path))
    for package in PACKAGES:
        _write(f"reference/{package}.md", page_of_package(package))
    _write("reference/commands.md", page_of_commands())
    _write("reference/messages.md", page_of_messages())
    _write("development/modules.md", page_of_modules())


def _write(page: str, text: str) -> None:
    (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / page).write_text(text, encoding="utf-8")


def _target(source: str, link: str) -> str:
    """Returns the path in the repository that a link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _page(path: str) -> str:
    """Returns the path in the site of a file or folder of the repository."""
    if path in NAMES:
        return NAMES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).suffix in PICTURES:
        return f"files/{path}"
    return f"files/{path}/index.md" if (ROOT / path).is_dir() else f"files/{path}.md"


def with_links(text: str, source: str) -> str:
    """Returns a page with its links rewritten for the site; fenced blocks stay as they are."""
    folder = posixpath.dirname(_page(source)) or "."

    def rewrite(match: re.Match[str]) -> str:
        return posixpath.relpath(_page(_target(source, match[1])), folder) + (match[2] or "")

    return _map_outside_blocks(text, lambda part: _LINK.sub(rewrite, part))


def _map_outside_blocks(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if _BLOCK.fullmatch(part) else change(part) for part in _BLOCK.split(text))


def page_of_files(path: str) -> str:
    """Returns a page with the content of a file, or of all sources in a folder."""
    file = ROOT / path
    sources = [each for each in sorted(file.rglob("*")) if each.suffix in LANGUAGES] if file.is_dir() else [file]
    page = f"# {path}\n"
    for each in sources:
        if each.stem.endswith(("_pb2", "_pb2_grpc", "__init__")):
            continue
        heading = f"\n## {each.relative_to(file).as_posix()}\n" if file.is_dir() else ""
        content = each.read_text(encoding="utf-8").rstrip()
        page += f"{heading}\n````{LANGUAGES.get(each.suffix, 'text')}\n{content}\n````\n"
    return page


def page_of_package(package: str) -> str:
    """Returns the page of the names that a package exports."""
    module = importlib.import_module(f"rollcast.{package}")
    names = "".join(f"\n::: rollcast.{package}.{name}\n" for name in module.__all__)
    return f"# rollcast.{package}\n\n{module.__doc__}\n{names}"


def page_of_commands() -> str:
    """Returns the page of all commands, each with its whole help."""
    page = "# Commands\n\nThis page lists all commands and options, as `rollcast COMMAND --help-all` prints them.\n"
    for name, command in COMMANDS.items():
        typed = [name, command.subcommand] if command.subcommand else [name]
        page += _help_of(typed)
        if name == "train":
            # its help has the options of one algorithm; those of rollcast learner are the same
            others = [other for other in ALGORITHMS if other != DEFAULT_ALGORITHM]
            page += "".join(_help_of([*typed, "--algorithm", other]) for other in others)
    return page


def _help_of(typed: list[str]) -> str:
    """Returns a section with the whole help of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        run_command([*typed, "--help-all"])
    return f"\n## rollcast {' '.join(typed)}\n\n````text\n{shown.getvalue().rstrip()}\n````\n"


def page_of_modules() -> str:
    """Returns the page of all modules, each with the first line of its docstring."""
    page = "# Modules\n"
    for package in (*PACKAGES, "tools"):
        folder = ROOT / ("learner" if package == "tools" else package) / "rollcast" / package
        page += f"\n## {package}\n\n| module | purpose |\n|---|---|\n"
        for path in sorted(folder.rglob("*.py")):
            if path.name == "__init__.py":
                continue
            # parsing all files takes seconds
            begin = _DOCSTRING.match(path.read_text(encoding="utf-8"))
            line = begin[1].replace("|", "\\|") if begin else ""
            page += f"| `{path.relative_to(folder).with_suffix('').as_posix()}` | {line} |\n"
    return page


if __name__ == "__main__":
    main()
