import dataclasses

import pytest

from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState, LearningFinding, Phase
from rollcast.tools.watching.relays import RelayActors
from rollcast.tools.watching.run_view import RunView
from rollcast.tools.watching.wording import (
    headline,
    learning,
    recent_rate,
    relay_name,
    relay_text,
    relays_of,
    state_text,
    waiting_fraction,
)
from tests.histories import RUN, actor, busy_run, lane, points, relayed_run, replay_status, status, update, view_of

A, S, W, P = (
    ActingState.ACTING,
    ActingState.SENDING,
    ActingState.WAITING_FOR_CREDIT,
    ActingState.WAITING_FOR_POLICY,
)


def sentence(waiting: float = 0.0, *, states: list[ActingState] | None = None, actors=None, **of_status) -> str:
    """Returns the headline of a run of three actors that all spent the last minute in the same states."""
    actors = tuple(actor(f"a{slot}", slot) for slot in range(3)) if actors is None else tuple(actors)
    lanes = tuple(lane(info.actor_id, (states or [A]) * (60 // len(states or [A]))) for info in actors)
    one = update(
        60.0,
        run=RUN,
        actors=actors,
        lanes=lanes if states is not None else (),
        points=points(60, waiting_fraction=waiting),
        status=status(**of_status),
    )
    return headline(view_of(one))


def test_says_that_nothing_is_known_yet():
    assert headline(RunView()) == "The learner has sent no status yet."


def test_what_is_not_healthy_about_training_is_a_sentence_each_cut_and_escaped():
    found = (
        LearningFinding("critic-clipped", "the critic is far\x1b off", "try --ppo.normalize-rewards"),
        LearningFinding("long", "x" * 999, "y"),
    )
    first, second = learning(view_of(update(60.0, run=RUN, status=status(findings=found))))
    assert first == "the critic is far\\x1b off; try --ppo.normalize-rewards"
    assert len(second) == 500
    assert learning(RunView()) == learning(view_of(update(60.0, run=RUN, status=status()))) == []


ROLLOUTS = "rollouts from 3 connected actors (a0 has been quiet for 8 s)"
ADVICE = "an actor to join at h:1: start one with `rollcast actor --learner-address HOST:PORT`"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            {"phase": Phase.STARTING, "waiting_for": "the first actor"},
            "Training has not started: the learner waits for the first actor.",
        ),
        (
            {"phase": Phase.PAUSED, "waiting_s": 190.0},
            "Training is paused by an operator, for 3 min: actors fill the queue and wait until it is resumed.",
        ),
        ({"phase": Phase.STOPPING}, "Training is stopping: the learner saves its policy and closes."),
        ({"phase": Phase.FINISHED}, "Training has ended after 0:01:00: 18,200,000 steps, mean return 187.3."),
        ({"phase": Phase.FINISHED, "mean_return": None}, "Training has ended after 0:01:00: 18,200,000 steps."),
        (
            {"waiting": 0.03, "states": [A] * 9 + [S]},
            "No part waits: 3 actors act 90 % and the trainer waits 3 % of the time.",
        ),
        (
            {"waiting": 0.6},  # actors that do not say what they do
            "The trainer waits 60 % of the time for rollouts: 3 actors deliver fewer than it could use; add actors, or "
            "environments for each actor.",
        ),
        (
            {"states": [A, W], "queue_size": 64},
            "The actors wait for the trainer 50 % of the time: the queue is full (64 trajectories); use a GPU or "
            "larger batches, or fewer actors.",
        ),
        (
            {"states": [W], "replay": replay_status()},
            "The actors wait for the trainer 100 % of the time: ... the rate limiter (--replay.samples-per-insert).",
        ),
        (
            {"states": [A], "waiting_for": ROLLOUTS, "waiting_s": 8.0},  # before what the last minute was
            "The trainer waits for 8.0 s for rollouts: 3 actors spend ...",
        ),
        ({"actors": [], "waiting_for": ADVICE, "waiting_s": 12.0}, f"The trainer has waited 12 s for {ADVICE}."),
    ],
)
def test_says_who_waits_and_for_what(run, text):
    begin, _, end = text.partition("...")
    said = sentence(**run)
    assert said.startswith(begin)
    assert said.endswith(end)
    assert "..." in text or said == text


def test_names_who_is_silent_and_for_how_long():
    others = [actor(f"a{slot}", slot) for slot in range(9)]
    quiet = [actor("left-arm", 9, idle_s=14.0), actor("b", 10, idle_s=11.0), actor("c", 11, idle_s=12.0)]
    assert sentence(0.38, actors=others + quiet, states=[A]) == (
        "The trainer waits 38 % of the time for rollouts: 3 of 12 actors are silent, left-arm for 14 s (acting); its "
        "environment is slow or hangs."
    )


def test_names_the_relay_whose_actors_are_all_gone():
    assert (
        "4 of 13 actors are gone, all 4 of relay rack-2 among them, rack-2-0 (lost) for 30 s: the stream"
        in headline(view_of(relayed_run()))
    )


def lost(*via: str, n: int, first: int) -> list[ActorInfo]:
    return [actor(f"a{slot}", slot, via=via, state=ActorState.LOST, idle_s=9.0) for slot in range(first, first + n)]


def test_of_relays_in_a_row_the_one_next_to_the_learner_is_named():
    told = [actor("b"), *lost("rack-1", "site", n=1200, first=1), *lost("rack-2", "site", n=2, first=2000)]
    assert "all 1,202 of relay site and of 2 other relays among them, a1 (lost)" in sentence(actors=told)
    told = [actor("b"), *lost("rack-1", "site", n=3, first=1)]
    assert "all 3 of relay rack-1 and of 1 other relay among them" in sentence(actors=told)


def test_relay_of_one_actor_or_with_one_that_acts_is_not_named():
    told = [*lost("rack-1", n=1, first=1), *lost("rack-2", n=2, first=5), actor("b", via=("rack-2",)), actor("c", 9)]
    assert "3 of 5 actors are gone, a1 (lost)" in sentence(actors=told)


def test_relay_that_says_nothing_is_why_its_actors_are_silent():
    actors = (*(actor(f"a{slot}", slot, via=("rack",), idle_s=20.0) for slot in range(3)), actor("b", 3))
    silent = tuple(lane(f"a{slot}", [A] * 40, end_s=40.0) for slot in range(3))
    one = update(60.0, run=RUN, actors=actors, lanes=(*silent, lane("b", [A] * 60)))
    assert headline(view_of(one)).endswith(
        "(acting); all 3 of relay rack are silent; the relay hangs, or its network is down."
    )


def test_texts_of_relays():
    assert relays_of(actor("a", via=("rack-1", "site\x1b"))) == "rack-1, site\\x1b"
    assert relays_of(actor("a")) == ""
    assert relay_name(RelayActors(relay_id="\n", n_actors=1)) == "\\n"
    assert relay_name(RelayActors(relay_id="", n_actors=1)) == "(directly)"
    texts = [
        relay_text(RelayActors(relay_id="a", n_actors=2, n_silent=silent, n_gone=gone))
        for silent, gone in ((0, 0), (1, 0), (2, 0), (1, 1), (0, 2))
    ]
    assert texts == ["", "", "all silent", "all silent or gone", "all gone"]


def test_says_why_an_actor_may_be_silent():
    told = [
        update(60.0, run=RUN, actors=(actor("a", idle_s=14.0), actor("b", 1)), lanes=lanes)
        for lanes in ((), (lane("a", [A] * 60),), (lane("a", [A] * 46, end_s=46.0), lane("b", [A] * 60)))
    ]
    whys = [headline(view_of(one)).partition("; ")[2] for one in told]
    assert whys == [
        "its environment is slow or hangs, or its network is down.",
        "its environment is slow or hangs.",
        "its process or machine hangs, or its network is down.",
    ]


def test_names_who_is_gone_and_why():
    told = [
        actor("a", 0),
        actor("b", 1, state=ActorState.FAILED, idle_s=30.0, last_error="ValueError: no ROM."),
        actor("c", 2, state=ActorState.LOST, idle_s=40.0),
        actor("d", 3, state=ActorState.LEFT),
    ]
    assert sentence(0.5, actors=told) == (
        "The trainer waits 50 % of the time for rollouts: 2 of 3 actors are gone, b (failed) for 30 s: ValueError: no "
        "ROM."
    )
    assert sentence(0.0, actors=told).startswith("The trainer does not wait, but 2 of 3 actors are gone, b (failed)")


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ([A], "3 actors spend 100 % of the time acting; add actors, or environments for each actor"),
        ([A, S], "3 actors spend 50 % of the time sending; the network is slow, or rollouts are large"),
        (
            [A, P],
            "3 actors spend 50 % of the time waiting for policies or loading them; the network is slow, or policies "
            "are large",
        ),
        ([A, ActingState.CONNECTING], "3 actors spend 50 % of the time connecting; read their logs"),
        (
            [W],
            "3 actors spend 100 % of the time waiting for credit; both wait in turns, as on-policy algorithms do; "
            "others need more cores or a larger --queue-out-of-sync-factor",
        ),
    ],
)
def test_says_why_actors_are_slow(states, why):
    assert sentence(0.6, states=states) == f"The trainer waits 60 % of the time for rollouts: {why}."


@pytest.mark.parametrize("phase", list(Phase))
def test_is_one_printable_line_whatever_actors_and_learner_say(phase):
    hostile = "\x1b[2J\x1b]0;owned\x07\nnext line\u202e" * 50
    actors = [
        actor(hostile, 0, state=ActorState.FAILED, last_error=hostile),
        actor(hostile * 2, 1, idle_s=99.0),
        actor("b", 2),
    ]
    for waiting_s in (0.0, 20.0):
        told = sentence(0.5, actors=actors, phase=phase, waiting_for=hostile, waiting_s=waiting_s)
        assert told.isprintable()
        assert len(told) < 600


def test_waiting_fraction_is_that_of_the_last_minute():
    view = view_of(busy_run())
    view.apply(update(61.0, points=points(1, end_s=61.0, waiting_fraction=0.98)))
    assert waiting_fraction(view) == pytest.approx((59 * 0.38 + 0.98) / 60)


def test_waiting_fraction_is_that_of_the_status_without_points():
    assert waiting_fraction(RunView()) is None
    assert waiting_fraction(view_of(update(1.0, run=RUN, status=status(waiting_fraction=0.2)))) == 0.2
    assert waiting_fraction(view_of(update(1.0, run=RUN, status=status(updates=0)))) is None


def test_recent_rate_is_the_steps_of_the_last_minute_over_its_seconds():
    assert recent_rate(RunView()) == (None, 60.0)
    assert recent_rate(view_of(busy_run())) == (pytest.approx(41_200.0), 60.0)


def test_recent_rate_of_slow_updates_is_not_zero():
    """An update every ten seconds, of 1,120 steps each: most seconds have none."""
    seconds = [
        dataclasses.replace(point, env_steps_per_second=1120.0 * (second % 10 == 9))
        for second, point in enumerate(points(60))
    ]
    assert recent_rate(view_of(update(60.0, run=RUN, points=tuple(seconds)))) == (pytest.approx(112.0), 60.0)
    silent = points(60, end_s=120.0, env_steps_per_second=0.0)
    assert recent_rate(view_of(update(120.0, run=RUN, points=(*seconds, *silent)))) == (pytest.approx(56.0), 300.0)


@pytest.mark.parametrize("fraction", [0.38, 0.9])
def test_names_the_slow_actor(fraction: float):
    rates = {"a0": 100.0, "a1": 110.0, "slow": 12.0, "a3": 90.0}
    actors = [actor(name, slot, env_steps_per_second=rate) for slot, (name, rate) in enumerate(rates.items())]
    told = sentence(fraction, states=[A] * 4, actors=actors)
    assert "; slow is the slowest with 12/s; the others' median is 100/s." in told
    alike = [dataclasses.replace(one, env_steps_per_second=100.0) for one in actors]
    assert "slowest" not in sentence(fraction, states=[A] * 4, actors=alike)


def test_state_of_a_lost_actor_counts_before_what_it_did():
    actors = actor("a", state=ActorState.LOST), actor("a"), actor("a", acting_state=None)
    assert [state_text(one) for one in actors] == ["lost", "acting", "connected"]
