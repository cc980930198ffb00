"""The tutorials, typed as they stand: a terminal for each that the page names, and each line of output compared."""

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.processes import free_port
from tests.shell import Programs, Terminal
from tests.transcript import ANY_LINES, Entry, File, pattern_of, session

# On an idle machine the longest takes 20 s; most of it is training.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
# Commands that no test types, by how they begin, and why.
NOT_TYPED = {
    "git clone": "downloads; the tests run in a checkout",
    "cd rollcast": "enters what git made",
    "python3 -m venv": "is the environment that the tests run in",
    ". .venv/bin/activate": "likewise: each terminal begins with it",
    "pip install": "downloads for minutes: tests/integration/test_plain_installation.py installs",
    "scp": "needs a second machine",
}

# Settings in front of commands, which then end sooner: the pages say that numbers differ. The README's first run
# trains to the end.
SOONER = {
    "rollcast train --algorithm impala --run-dir runs/first": "ROLLCAST_STOP_RETURN=150",
    # more than a run has that is stopped late, on a busy machine
    "rollcast train --resume runs/second": "ROLLCAST_STOP_RETURN=400",
    "rollcast train --env-id catch:make --stop-return 0.95 --run-dir runs/catch": (
        "ROLLCAST_PPO__LEARNING_RATE=0.002 ROLLCAST_PPO__N_EPOCHS=4 ROLLCAST_PPO__MINIBATCH_STEPS=256"
    ),
    "rollcast train --env-id catch:make --total-steps 5000 --run-dir runs/mended": "ROLLCAST_PPO__N_EPOCHS=1",
}

# Commands that only look at a learner, which may take a moment to see what the reader has just done.
LOOKS = ("rollcast status",)
_LOOK_TIMEOUT_S = 180.0


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_reader_sees_what_the_page_shows(page: Path, tmp_path: Path):
    play(session(page.read_text(encoding="utf-8")), tmp_path, SOONER)


def test_commands_that_are_to_end_sooner_are_on_the_pages():
    steps = [step for page in TUTORIALS for step in session(page.read_text(encoding="utf-8"))]
    assert {step.typed for step in steps if isinstance(step, Entry)} >= SOONER.keys()


def test_the_learner_that_runs_until_it_is_stopped_outlasts_its_reader():
    """The default, 20,000,000 steps, takes two fast actors a few minutes: less than a reader needs for the page."""
    page = next(page for page in TUTORIALS if page.stem == "two_machines").read_text(encoding="utf-8")
    (steps,) = re.findall(r"rollcast learner --address .*--total-steps (\d+)", page)
    hour_of_fast_actors = 3600 * 200_000
    assert int(steps) > hour_of_fast_actors


def test_no_folder_has_the_name_of_a_module():
    """From the folder above, Python would import it as an empty package, and not say that no module has this name."""
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        folders, modules = re.findall(r"mkdir (\w+)", text), re.findall(r"--env-id (\w+):", text)
        assert not set(folders) & set(modules), page.name


def test_each_is_about_a_failure_and_leads_on():
    assert {page.stem for page in TUTORIALS} == {"first_run", "own_environment", "two_machines", "own_training_loop"}
    for page in TUTORIALS:
        headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert any(heading.startswith("Break") for heading in headings), page.name
        assert headings[-1] == "Where to go next", page.name


def play(steps: list[File | Entry], folder: Path, sooner: Mapping[str, str]) -> None:
    """Does what a page says, in a folder.

    Args:
        steps: What the page says.
        folder: The folder.
        sooner: By the command, a setting in front of it.
    """
    entries = [step for step in steps if not (isinstance(step, Entry) and is_left_out(step))]
    port = free_port()
    terminals: dict[str, Terminal] = {}
    with contextlib.ExitStack() as stack:
        programs = stack.enter_context(contextlib.closing(Programs()))
        for step, following in zip(entries, [*entries[1:], None], strict=True):
            if isinstance(step, File):
                (folder / step.name).write_text(step.text, encoding="utf-8")
                continue
            if step.terminal not in terminals:
                terminals[step.terminal] = stack.enter_context(Terminal(folder, port, programs))
            terminal = terminals[step.terminal]
            if step.is_key:
                terminal.press(step.typed)
                expect_end(terminal, step)
                continue
            if step.typed.startswith(LOOKS):
                look(terminal, step)
                continue
            terminal.type(f"{sooner.get(step.typed, '')} {step.typed}".lstrip())
            if goes_on(step, following):
                expect_beginning(terminal, step)
            else:
                expect_end(terminal, step)
        for terminal in terminals.values():
            terminal.wait_ready()


def is_left_out(entry: Entry) -> bool:
    return any(entry.typed.startswith(start) for start in NOT_TYPED)


def goes_on(entry: Entry, following: File | Entry | None) -> bool:
    """Returns whether a command may still run when the reader presses a key, or turns to another terminal."""
    return isinstance(following, Entry) and (following.is_key or following.terminal != entry.terminal)


def expect_beginning(terminal: Terminal, entry: Entry) -> None:
    """Waits until the first lines are those of the page, also if only for a moment."""
    lines = entry.shown
    while lines and lines[-1] == ANY_LINES:
        lines = lines[:-1]
    assert lines, f"the page shows nothing of {entry.typed}, which may not have begun when the reader goes on"
    pattern = re.compile(terminal.here(pattern_of(lines, differs=entry.differs)))
    what = "\n".join((f"the output of {entry.typed}:", *lines))
    # a live view shows some lines for half a second only
    was_shown = False

    def is_shown_or_over() -> bool:
        nonlocal was_shown
        was_shown = was_shown or pattern.match(terminal.text()) is not None
        return was_shown or terminal.is_ready()

    terminal.wait(is_shown_or_over, what)
    assert was_shown, f"{what}\nthe terminal shows\n{terminal.text()}"


def look(terminal: Terminal, entry: Entry) -> None:
    """Types a command until it shows what the page shows."""
    deadline = time.monotonic() + _LOOK_TIMEOUT_S
    while True:
        terminal.type(entry.typed)
        terminal.wait_ready()
        if re.fullmatch(end_of(terminal, entry), printed(terminal)) or time.monotonic() > deadline:
            break
    expect_end(terminal, entry)


def expect_end(terminal: Terminal, entry: Entry) -> None:
    """Waits for the end of the command; after a key, the output before it has been compared."""
    terminal.wait_ready()
    of_page, shown = "\n".join(entry.shown), printed(terminal)
    assert re.fullmatch(end_of(terminal, entry), shown), (
        f"{entry.typed}\nthe page shows\n{of_page}\nthe terminal shows\n{shown}"
    )


def end_of(terminal: Terminal, entry: Entry) -> str:
    """Returns the regular expression of what a command has printed at its end."""
    before = (ANY_LINES,) if entry.is_key else ()
    return terminal.here(pattern_of((*before, *entry.shown), differs=entry.differs))


def printed(terminal: Terminal) -> str:
    """Returns what the last command has printed; empty if it is nothing."""
    text = terminal.text()
    return text if text.strip() else ""
