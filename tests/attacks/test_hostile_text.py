"""Text that an actor, a learner or a stranger's run directory chose never reaches a terminal raw."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from rollcast.actor.playing.evaluate import summarize
from rollcast.learner.commands.evaluate import _print as print_evaluation
from rollcast.learner.settings.evaluate import EvaluateSettings
from rollcast.learner.writers.console import ConsoleView
from rollcast.services.errors import ConfigurationError, RollcastError, SpacesMismatchError
from rollcast.services.joining.evaluation import EvaluationActions
from rollcast.services.limits.refusals import Throttled
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, LearningFinding, Phase
from rollcast.tools import cli
from tests.integration.learner_fakes import FakeControl, serve
from tests.processes import rollcast

# A cleared screen, a window's title, a clipboard, C1, a line of a log, an override, markup and an emoji of rich's.
HOSTILE = "\x1b[2J\x1b]0;t\x07\x1b]52;c;eA==\x07\x9b31m\r\n2026-11-22 INFO fine\u202e\u2028[red]:warning:[/red][link=x]"
SHOWN = r"\x1b[2J\x1b]0;t\x07\x1b]52;c;eA==\x07\x9b31m\r"


class HostileControl(FakeControl):
    """A learner whose every text is hostile."""

    def status(self) -> LearnerStatus:
        return LearnerStatus(
            phase=Phase.TRAINING,
            waiting_for=HOSTILE,
            waiting_s=60.0,
            run_dir=HOSTILE,
            algorithm=HOSTILE,
            software_version=HOSTILE,
            throttled=(Throttled(who=HOSTILE, limit=HOSTILE, times=1, idle_s=1.0),),
            findings=(LearningFinding(HOSTILE, HOSTILE, HOSTILE),),
        )

    def actors(self) -> list[ActorInfo]:
        return [
            ActorInfo(
                actor_id=HOSTILE,
                slot=0,
                incarnation=2,
                state=ActorState.FAILED,
                peer=HOSTILE,
                software_version=HOSTILE,
                last_error=HOSTILE,
            )
        ]


def assert_harmless(text: str) -> None:
    """Every line is printable, and none begins as a line of a log does."""
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    assert not [line for line in text.split("\n") if line.startswith("2026")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--actors"),
        ("status", "--actors", "--json-output"),
        ("doctor",),
        ("doctor", "--json-output"),
        ("top", "--once"),
    ],
)
def test_what_a_learner_says_of_itself_and_its_actors(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tests.integration.learner_fakes.FakeControl", HostileControl)
    monkeypatch.setenv("COLUMNS", "1000")
    with serve() as learner:
        cli.main([*arguments, "--address", learner.address])
    text = capsys.readouterr().out
    assert_harmless(text)
    if "--json-output" in arguments:
        assert repr(HOSTILE)[1:-1] in repr(json.loads(text))
    else:
        assert SHOWN in text
        assert "[red]:warning:[/red]" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_live_view(terminal: bool):
    status = HostileControl().status()

    def shown(status: LearnerStatus, statistics: dict[str, float]) -> str:
        console = Console(file=io.StringIO(), width=1000, force_terminal=terminal, color_system=None)
        view = ConsoleView(lambda: status, console, statistics=lambda: statistics, refresh_interval_s=60.0)
        with view:
            pass
        return console.file.getvalue()

    text = shown(status, {HOSTILE: 1.0})
    own = shown(LearnerStatus(phase=Phase.TRAINING), {})
    assert SHOWN in text
    assert "[red]:warning:[/red]" in text
    # what is left are the view's own escapes, which a harmless status has, too
    assert {*text} - {*own} <= {character for character in text if character.isprintable()}
    for sequence in ("\x1b[2J", "\x1b]", "\u202e"):
        assert sequence not in text


def test_the_settings_of_a_strangers_run():
    output = io.StringIO()
    played = {EvaluationActions.LIKELIEST: summarize((1.0, 2.0), (1, 2))}
    print_evaluation(output, EvaluateSettings(run_dir="run"), played, f"best, version 3, on {HOSTILE}")
    text = output.getvalue()
    assert_harmless(text)
    assert SHOWN in text
    assert "[red]:warning:[/red]" in text


@pytest.mark.parametrize("error", [ConfigurationError, RollcastError])
def test_the_error_that_ends_a_command(
    error: Callable[[str], Exception], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail(settings: object, output: object) -> int:
        raise error(HOSTILE)

    monkeypatch.setattr("rollcast.tools.status.status", fail)
    cli.main(["status"])
    text = capsys.readouterr().err
    assert_harmless(text)
    assert SHOWN in text


@pytest.mark.slow
def test_a_learner_that_refuses_an_actor():
    with serve() as learner:
        learner.sink.join_error = SpacesMismatchError(HOSTILE)
        done = rollcast("actor", "--learner-address", learner.address, "--env-id", "CartPole-v1")
    assert done.returncode == 1
    assert_harmless(done.stderr)
    assert SHOWN in done.stderr
