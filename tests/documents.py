"""Reads what README and docs show: their pages, fenced blocks, and the commands in these."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# By name, which no two pages share: a test finds its page in whatever folder it stands.
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    """Returns the text of the page with a name, such as `limits.md`."""
    return PAGES[name].read_text(encoding="utf-8")


def section_of(name: str, heading: str) -> str:
    """Returns the section of a page below a heading of the second level."""
    return text_of(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(text: str, *languages: str) -> list[str]:
    """Returns the fenced blocks in a page, those of some languages only if any is given."""
    return [body for language, body in _FENCE.findall(text) if not languages or language in languages]


def without_blocks(text: str) -> str:
    """Returns a page without its fenced blocks."""
    return _FENCE.sub("", text)


def commands(text: str) -> list[str]:
    """Returns the commands that a page shows, without comments; lines that are continued are one command."""
    found: list[str] = []
    for block in blocks(text, "sh"):
        lines = re.sub(r"\\\n\s*", " ", block).splitlines()
        found += [re.sub(r"\s+# .*", "", line).strip() for line in lines if line.strip() and not line.startswith("#")]
    for block in blocks(text, "console"):
        # what is typed begins with a dollar; a line after a backslash, or an indented string, continues it
        joined = re.sub(r"\\\n\s*", " ", block)
        found += [" ".join(typed.split()) for typed in re.findall(r"^\$ (.*(?:\n +\".*)?)$", joined, re.MULTILINE)]
    return found
