"""README and docs show only what exists: commands, options, variables, links, modules, programs."""

import ast
import importlib
import re
from pathlib import Path

from pydantic import BaseModel

from rollcast.tools.commands import COMMANDS
from tests.documents import PAGES, ROOT, blocks, text_of, without_blocks
from tests.soak.__main__ import make_parser

README = ROOT / "README.md"

# Of docker-compose.yml and deploy/stack.yml, not of a process.
DEPLOYMENT_VARIABLES = {
    "ROLLCAST_PORT",
    "ROLLCAST_ACTOR_EXTRAS",
    "ROLLCAST_LEARNER_EXTRAS",
    "ROLLCAST_UID",
    "ROLLCAST_GID",
    "ROLLCAST_IMAGE_PREFIX",
    "ROLLCAST_TAG",
    "ROLLCAST_CERTS",
    "ROLLCAST_N_RANKS",
    "ROLLCAST_SETTINGS_EXIT_CODE",
    "ROLLCAST_PROMETHEUS_IMAGE",
    "ROLLCAST_PROMETHEUS_PORT",
    "ROLLCAST_GRAFANA_IMAGE",
    "ROLLCAST_GRAFANA_PORT",
    "ROLLCAST_DASHBOARD_PORT",
}
# Other programs' options.
FOREIGN_OPTIONS = {
    *("--scale", "--build", "--profile", "--protocol", "--logdir", "--replicas", "--help", "--version"),
    *("--env-add", "--availability"),
    *("--user", "--python"),
    *("--requeue", "--signal", "--batch", "--mail-type"),
}

_INVOCATION = re.compile(rf"(?:rollcast|python -m) ({'|'.join(COMMANDS)})\b([^`|#&;\n]*)")


def fields_of(model: type[BaseModel], prefix: str = "", *, separator: str) -> set[str]:
    """Names of the settings, those of nested models with their path."""
    names = set()
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            names |= fields_of(nested, f"{prefix}{name}{separator}", separator=separator)
        else:
            names.add(prefix + name)
    return names


def options_of(command: str) -> set[str]:
    """The command's options as they are typed."""
    names = {name.replace("_", "-") for name in fields_of(COMMANDS[command].settings(), separator=".")}
    return {f"--{name}" for name in names} | {f"--no-{name}" for name in names} | {"--config", "--help", "--help-all"}


def invocations(text: str) -> list[tuple[str, list[str]]]:
    """`(command, options)` of every call of rollcast in a text."""
    joined = text.replace("\\\n", " ")
    return [(command, re.findall(r"(?<!\S)--[\w.-]+", rest)) for command, rest in _INVOCATION.findall(joined)]


def inline_code(text: str) -> list[str]:
    """Returns the texts between single backticks, outside of fenced blocks."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", without_blocks(text))]


class TestReadme:
    def test_calls_show_the_client_as_it_is_in_the_examples(self):
        client = (ROOT / "examples" / "client.py").read_text(encoding="utf-8")
        assert client in blocks(text_of("call_api.md"), "python")

    def test_is_read_in_five_minutes(self):
        assert len(README.read_text(encoding="utf-8").splitlines()) <= 120

    def test_says_when_not_to_use_it_and_compares(self):
        text = README.read_text(encoding="utf-8")
        assert "**When not to use it**" in text
        for other in ("Stable-Baselines3", "RLlib", "Sample Factory", "Reverb"):
            assert f"\n| {other} |" in text


class TestCommands:
    def test_every_command_exists(self):
        for name in PAGES:
            shells = "\n".join(blocks(text_of(name), "sh", "console"))
            shown = set(re.findall(r"\brollcast ([a-z][\w-]*)", shells))
            assert shown <= COMMANDS.keys() | {"learner"}, name

    def test_every_option_of_a_call_exists(self):
        known = {command: options_of(command) for command in COMMANDS}
        for name in PAGES:
            page = text_of(name)
            for text in (*blocks(page, "sh", "console"), *inline_code(page)):
                for command, options in invocations(text):
                    assert set(options) <= known[command], f"{name}: rollcast {command}"

    def test_every_option_in_the_text_exists(self):
        known = set().union(*(options_of(command) for command in COMMANDS)) | FOREIGN_OPTIONS
        known |= set(re.findall(r"--[\w-]+", make_parser().format_help()))
        for name in PAGES:
            text = "\n".join(inline_code(text_of(name)))
            assert set(re.findall(r"(?<!\S)--[\w.-]+", text)) <= known, name

    def test_every_variable_exists(self):
        known = {
            f"ROLLCAST_{name}".upper()
            for command in COMMANDS.values()
            for name in fields_of(command.settings(), separator="__")
        }
        for name in PAGES:
            assert set(re.findall(r"\bROLLCAST_\w*[A-Z]", text_of(name))) <= known | DEPLOYMENT_VARIABLES, name


class TestLinks:
    def test_every_relative_link_leads_somewhere(self):
        for path in PAGES.values():
            targets = re.findall(r"\]\(([^)\s]+)\)", without_blocks(path.read_text(encoding="utf-8")))
            for target in (target for target in targets if not target.startswith("https://")):
                file, _, anchor = target.partition("#")
                found = (path.parent / file) if file else path
                assert found.exists(), f"{path.name} links to {target}"
                assert found.resolve().is_relative_to(ROOT), f"{path.name} links out of the project: {target}"
                if anchor:
                    assert anchor in _anchors(found), f"{path.name} links to {target}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class TestPrograms:
    def test_every_python_block_imports_what_exists(self):
        for name in PAGES:
            trees = [ast.parse(block) for block in blocks(text_of(name), "python")]
            imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            for node in imports:
                module = importlib.import_module(node.module or "")
                missing = [imported.name for imported in node.names if not hasattr(module, imported.name)]
                assert not missing, f"{name}: {node.module} has no {missing}"


def test_make_has_every_target_that_a_page_names():
    targets = [
        target.replace("%", r"[\w.]+")
        for target in re.findall(r"^([a-z][\w-]*%?):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ]
    others = (ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *(ROOT / "benchmarks").rglob("*.md"))
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (*PAGES.values(), *others))
    named = set(re.findall(r"(?:`|^\$ )make ([a-z][\w.-]*)", pages, re.MULTILINE))
    assert {"test", "unit", "light-3.12"} <= named
    assert not [name for name in named if not re.fullmatch("|".join(targets), name)]
