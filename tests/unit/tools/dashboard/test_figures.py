"""The words of the page: units, separators, "-" for what is not known, and nothing that moves a cursor."""

import pytest

from rollcast.services.history.history import EventSeverity, HistoryEvent
from rollcast.services.limits.refusals import Throttled
from rollcast.services.status.status import ActorState, Phase
from rollcast.tools.dashboard.figures import (
    COLUMNS,
    RELAY_COLUMNS,
    RelayRow,
    about_actor,
    actor_row,
    event_rows,
    learner_row,
    phase_of,
    relay_rows,
    subtitle_of,
    throttled_rows,
    title_of,
)
from rollcast.tools.watching.run_view import RunView
from tests.histories import RUN, actor, busy_run, relayed_run, status, update, view_of


@pytest.fixture
def view():
    return view_of(busy_run())


class TestHead:
    def test_names_the_run(self, view):
        assert title_of(view) == "LunarLander-v3 · ppo · lander-3"
        assert subtitle_of(view) == "0:01:00  seed 3"
        resumed = update(10.0, run=RUN, status=status(seconds=70.0))
        assert subtitle_of(view_of(resumed)) == "0:01:10  seed 3", "the clock of its events"
        assert title_of(RunView()) == subtitle_of(RunView()) == ""

    def test_says_how_training_stands(self, view):
        assert phase_of(view, None) == "TRAINING"
        assert phase_of(view, "it is gone") == "NO ANSWER"
        assert phase_of(RunView(), None) == "NO ANSWER"
        ended = view_of(update(1.0, run=RUN, status=status(phase=Phase.FINISHED)))
        assert phase_of(ended, "it is gone") == "FINISHED"


class TestRows:
    def test_of_an_actor_that_acts(self):
        row = actor_row(actor("node-1", incarnation=3))
        assert row["cells"] == ["v812", "5.1k", "2", "2.0M"]
        assert (row["letter"], row["bad"]) == ("A", False)

    @pytest.mark.parametrize("state", [ActorState.LOST, ActorState.FAILED, ActorState.REFUSED])
    def test_of_an_actor_that_is_gone(self, state):
        row = actor_row(actor("node\x1b[2J", state=state, last_error="it\nbroke"))
        assert (row["letter"], row["bad"]) == ("!", True)
        assert row["name"] == r"node\x1b[2J"
        assert row["id"] == "node\x1b[2J"
        assert row["title"].endswith(": it")
        assert row["cells"][1] == "-"

    def test_an_actor_that_does_not_say_uses_the_version_of_its_last_rollout(self):
        row = actor_row(actor("old", applied_policy_version=0, policy_version=7))
        assert row["cells"][0] == "v7"
        assert actor_row(actor("new", applied_policy_version=0))["cells"][0] == "-"

    def test_of_the_learner(self, view):
        assert learner_row(view)["cells"] == ["v812", "41.2k", "", "18.2M"]
        assert learner_row(RunView())["cells"] == ["-"] * len(COLUMNS)

    def test_an_actor_whole(self):
        one = actor("a", peer="192.0.2.1", n_envs=8, idle_s=14.0, cpu_cores=0.75, memory_bytes=312 << 20)
        about = dict(about_actor(one))
        assert about["peer"] == "192.0.2.1"
        assert about["last rollout"] == "14 s ago"
        assert (about["processor"], about["memory"]) == ("0.8 cores", "312 MiB")
        assert about["answers to requests for actions"] == "-"
        older = dict(about_actor(actor("says neither")))
        assert (older["processor"], older["memory"]) == ("-", "-")
        asks = dict(about_actor(actor("a", answer_p50_s=0.002, answer_p99_s=0.25)))
        assert asks["answers to requests for actions"] == "p50 2.0 ms, p99 250 ms"


class TestRelays:
    def test_each_has_its_actors_and_their_rate_the_worst_off_first(self):
        rows = relay_rows(view_of(relayed_run()))
        assert [name for name, _ in RELAY_COLUMNS] == ["actors", "silent", "gone", "steps/s"]
        assert rows[:2] == [
            RelayRow(name="rack-2", cells=("4", "0", "4", "0"), doing="all gone", is_bad=True),
            RelayRow(name="rack-3", cells=("4", "1", "0", "20.4k"), doing="", is_bad=False),
        ]
        assert [row.name for row in rows[2:]] == ["site-a", "rack-1", "(directly)"]

    def test_names_are_escaped(self):
        relayed = update(1.0, run=RUN, actors=(actor("a", via=("\x1b[2J",)),))
        assert relay_rows(view_of(relayed))[0].name == "\\x1b[2J"
        assert ("relays", "\\x1b[2J") in about_actor(relayed.actors[0])

    def test_run_without_relays_has_none(self, view):
        assert relay_rows(view) == []
        assert ("relays", "none") in about_actor(view.actors[0])


class TestEvents:
    def test_are_escaped_and_relative_to_the_run(self, view):
        event = HistoryEvent(
            time_s=RUN.started_unix_s + 31.0,
            severity=EventSeverity.ERROR,
            who="\u202ea",
            text="a\nb",
            detail="why\n\x1b[2Jso",
        )
        (row,) = event_rows(view, [event])
        assert (row["at"], row["severity"]) == ("0:00:31", "error")
        assert (row["who"], row["text"]) == (r"\u202ea", r"a\nb")
        assert "\x1b" not in row["detail"]
        assert "\n" in row["detail"]

    def test_of_one_moment_have_keys_of_their_own(self, view):
        event = HistoryEvent(time_s=1.0, severity=EventSeverity.INFO, who="", text="x")
        rows = event_rows(view, [event, event])
        assert len({row["key"] for row in rows}) == 2
        assert rows[0]["who"] == "learner"


def test_clients_that_met_a_limit_have_a_line():
    (line,) = throttled_rows(status(throttled=(Throttled(who="10.0.0.1", limit="max_streams", times=3, idle_s=2.0),)))
    assert line == "10.0.0.1 met the limit max_streams 3 times, last 2.0 s ago"
