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


def test_actor_that_waits_for_the_learner_is_not_silent():
    waiting = [
        actor("credit", 0, idle_s=60.0, acting_state=ActingState.WAITING_FOR_CREDIT),
        actor("policy", 1, idle_s=60.0, acting_state=ActingState.WAITING_FOR_POLICY),
    ]
    assert not silences(waiting)


def test_actors_whose_rollouts_all_take_long_are_not_silent():
    slow = [actor(f"slow-{slot}", slot, idle_s=4.0 + 2 * slot) for slot in range(5)]
    assert not silences(slow)
    assert list(silences([*slow, actor("hangs", 9, idle_s=60.0)])) == ["hangs"]


def test_two_of_three_that_are_silent_are_found():
    actors = [actor("a", 0, idle_s=12.0), actor("b", 1, idle_s=40.0), actor("c", 2, idle_s=0.1)]
    assert list(silences(actors)) == ["b", "a"]


def test_all_are_silent_if_none_says_anything():
    assert list(silences([actor("a", 0, idle_s=20.0), actor("b", 1, idle_s=21.0)])) == ["b", "a"]


def test_gone_are_those_who_did_not_leave():
    states = {state: actor(state.name, state.value, state=state) for state in ActorState}
    assert {info.state for info in gone(list(states.values()))} == {
        ActorState.LOST,
        ActorState.FAILED,
        ActorState.REFUSED,
    }


def test_actor_that_reports_nothing_is_silent_whatever_it_did():
    actors = [actor("frozen", 0, idle_s=14.0, acting_state=ActingState.WAITING_FOR_CREDIT), actor("b", 1, idle_s=14.0)]
    assert silences(actors[:1], {"frozen": 13.0}.get) == {"frozen": 13.0}
    assert silences(actors, {"frozen": 40.0, "b": 0.0}.get) == {"frozen": 40.0, "b": 14.0}
    assert not silences(actors[:1], {"frozen": 9.0}.get)


def test_lost_actor_is_not_silent():
    assert not silences([actor("a", state=ActorState.LOST, idle_s=99.0)], {"a": 99.0}.get)


def test_actor_that_has_just_come_back_is_not_silent():
    assert not silences([actor("a", idle_s=0.5)], {"a": 30.0}.get)


def test_waiting_actors_are_no_measure_for_the_others():
    waiting = [actor(f"w{i}", i, idle_s=60.0, acting_state=ActingState.WAITING_FOR_CREDIT) for i in range(5)]
    assert list(silences([*waiting, actor("hangs", 9, idle_s=30.0)])) == ["hangs"]
