import itertools

from rollcast.services.status.status import ActorInfo, ActorState
from rollcast.tools.watching.ranking import silences
from rollcast.tools.watching.relays import RelayActors, relays
from tests.histories import actor

_slots = itertools.count()


def behind(*via: str, n: int = 1, **changes) -> list[ActorInfo]:
    """Returns `n` actors behind the same relays."""
    return [actor(f"a{slot}", slot, via=via, **changes) for slot in itertools.islice(_slots, n)]


def summed(*actors: ActorInfo) -> tuple[RelayActors, ...]:
    return relays(actors, silences(actors))


def test_actors_are_summed_up_by_relay():
    actors = [
        *behind("rack", n=2, env_steps_per_second=100.0),
        *behind("rack", env_steps_per_second=7.0, idle_s=60.0),
        *behind("rack", env_steps_per_second=50.0, state=ActorState.FAILED),
    ]
    assert summed(*actors) == (
        RelayActors(relay_id="rack", n_actors=4, n_silent=1, n_gone=1, env_steps_per_second=207.0),
    )


def test_run_without_relays_has_none():
    assert summed() == ()
    assert summed(*behind(n=3)) == ()


def test_actors_that_have_left_do_not_count():
    left = behind("rack", n=3, state=ActorState.LEFT)
    assert summed(*left) == ()
    assert [relay.n_actors for relay in summed(*left, *behind("rack", n=2))] == [2]


def test_actor_behind_several_relays_counts_for_each():
    found = summed(*behind("rack-1", "site", n=2), *behind("rack-2", "site"), *behind("loop", "loop"))
    assert {relay.relay_id: relay.n_actors for relay in found} == {"rack-1": 2, "rack-2": 1, "site": 3, "loop": 1}


def test_actors_without_a_relay_come_last_even_if_all_are_gone():
    found = summed(*behind("rack"), *behind(n=2, state=ActorState.LOST))
    assert [(relay.relay_id, relay.n_actors, relay.is_gone) for relay in found] == [("rack", 1, False), ("", 2, True)]


def test_worst_off_relays_come_first_and_alike_ones_by_name():
    actors = [
        *behind("well-b", n=20),
        *behind("well-a", n=20),
        *behind("one-of-20", n=19),
        *behind("one-of-20", state=ActorState.LOST),
        *behind("half", n=2),
        *behind("half", n=2, idle_s=60.0),
        *behind("all-silent", n=2, idle_s=60.0),
        *behind("z-all-lost", n=2, state=ActorState.LOST),
    ]
    assert [relay.relay_id for relay in summed(*actors)] == [
        "z-all-lost", "all-silent", "half", "one-of-20", "well-a", "well-b",
    ]  # fmt: skip


def test_relay_whose_actors_are_all_gone_is_gone():
    gone, silent, mixed, well = summed(
        *behind("a-gone", n=2, state=ActorState.LOST),
        *behind("b-silent", n=2, idle_s=60.0),
        *behind("c-mixed", idle_s=60.0),
        *behind("c-mixed", state=ActorState.REFUSED),
        *behind("d-well", state=ActorState.LOST),
        *behind("d-well"),
    )
    assert [(relay.is_gone, relay.has_no_worker) for relay in (gone, silent, mixed, well)] == [
        (True, True), (False, True), (False, True), (False, False),
    ]  # fmt: skip


def test_steps_of_actors_that_are_not_connected_are_not_counted():
    (relay,) = summed(*behind("rack", n=2, state=ActorState.LOST, env_steps_per_second=5.0))
    assert relay.env_steps_per_second == 0.0
