"""Reads what README and docs show: their pages, fenced blocks, and the commands in these."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
        # what is typed begins with a dollar; an indented line after it goes on with it
        found += [" ".join(typed.split()) for typed in re.findall(r"^\$ (.*(?:\n +\".*)?)$", block, re.MULTILINE)]
    return found
