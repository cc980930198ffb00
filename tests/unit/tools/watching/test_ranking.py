import pytest

from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState
from rollcast.tools.watching.ranking import gone, ranked, silences
from tests.histories import actor


def names(actors: list[ActorInfo]) -> list[str]:
    return [info.actor_id for info in actors]


def test_worst_off_come_first():
    actors = [
        actor("left", 0, state=ActorState.LEFT),
        actor("busy", 1),
        actor("idle", 2),
        actor("silent", 3, idle_s=14.0),
        actor("longer-silent", 4, idle_s=90.0),
        actor("lost", 5, state=ActorState.LOST),
        actor("failed", 6, state=ActorState.FAILED),
        actor("joined", 7, state=ActorState.JOINED),
        actor("also-busy", 8),
    ]
    shares = {"busy": 0.91, "also-busy": 0.98, "idle": 0.2}
    assert names(ranked(actors, shares.get, silences(actors))) == [
        "failed", "lost", "longer-silent", "silent", "idle", "busy", "also-busy", "joined", "left",
    ]  # fmt: skip


def test_alike_actors_keep_the_order_of_their_slots():
    actors = [actor(name, slot) for slot, name in enumerate("abcd")]
    shares = {"a": 0.81, "b": 0.89, "c": 0.84, "d": 0.80001}
    assert names(ranked(actors, shares.get, silences(actors))) == ["a", "b", "c", "d"]


WAITS = {"idle_s": 60.0, "acting_state": ActingState.WAITING_FOR_CREDIT}
SLOW = [actor(f"slow-{slot}", slot, idle_s=4.0 + 2 * slot) for slot in range(5)]
FROZEN = actor("frozen", 0, idle_s=14.0, acting_state=ActingState.WAITING_FOR_CREDIT)


@pytest.mark.parametrize(
    ("actors", "unheard", "silent"),
    [
        pytest.param([actor("a", 0, **WAITS)], {}, {}, id="waits for credit"),
        pytest.param(
            [actor("a", 0, idle_s=60.0, acting_state=ActingState.WAITING_FOR_POLICY)], {}, {}, id="waits for a policy"
        ),
        pytest.param(SLOW, {}, {}, id="all take long"),
        pytest.param([*SLOW, actor("b", 9, idle_s=60.0)], {}, {"b": 60.0}, id="one takes longer than all"),
        pytest.param(
            [actor("a", 0, idle_s=12.0), actor("b", 1, idle_s=40.0), actor("c", 2, idle_s=0.1)],
            {},
            {"b": 40.0, "a": 12.0},
            id="two of three",
        ),
        pytest.param(
            [actor("a", 0, idle_s=20.0), actor("b", 1, idle_s=21.0)],
            {},
            {"b": 21.0, "a": 20.0},
            id="none says anything",
        ),
        pytest.param(
            [*(actor(f"w{i}", i, **WAITS) for i in range(5)), actor("b", 9, idle_s=30.0)],
            {},
            {"b": 30.0},
            id="those that wait are no measure for the others",
        ),
        pytest.param([FROZEN], {"frozen": 13.0}, {"frozen": 13.0}, id="reports nothing, whatever it did"),
        pytest.param(
            [FROZEN, actor("b", 1, idle_s=14.0)],
            {"frozen": 40.0, "b": 0.0},
            {"frozen": 40.0, "b": 14.0},
            id="reports nothing beside another that is silent",
        ),
        pytest.param([FROZEN], {"frozen": 9.0}, {}, id="has reported a moment ago"),
        pytest.param([actor("a", state=ActorState.LOST, idle_s=99.0)], {"a": 99.0}, {}, id="is lost"),
        pytest.param([actor("a", idle_s=0.5)], {"a": 30.0}, {}, id="has just come back"),
    ],
)
def test_silent_are(actors, unheard, silent):
    found = silences(actors, unheard.get)
    assert list(found.items()) == list(silent.items()), "the longest first"


def test_gone_are_those_who_did_not_leave():
    states = {state: actor(state.name, state.value, state=state) for state in ActorState}
    assert {info.state for info in gone(list(states.values()))} == {
        ActorState.LOST,
        ActorState.FAILED,
        ActorState.REFUSED,
    }
