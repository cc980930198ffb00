import contextlib
import dataclasses
import functools
import json
import math
import random
import time
from collections.abc import Callable

import pytest

from rollcast.learner.serving.assignment import OneLearner
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.services.errors import (
    ActorReplacedError,
    InvalidRolloutError,
    LimitExceededError,
    RefusedError,
    UnknownActorError,
)
from rollcast.services.joining.activity import ActingState, ActorActivity, ActorFailure
from rollcast.services.joining.join import JoinOffer
from rollcast.services.limits.limits import MAX_REASON_LENGTH
from rollcast.services.status.status import ActorState
from tests.rollouts import make_rollout
from tests.unit.learner.serving import intakes


def offer(name: str, nonce: int, **changes: int) -> JoinOffer:
    return intakes.offer(actor_id=name, process_nonce=nonce, **changes)


def make_registry(**changes: object) -> ActorRegistry:
    return ActorRegistry(**{"max_actors": 4, **changes})


def streaming(registry: ActorRegistry, name: str, nonce: int) -> Callable[..., None]:
    """Joins and opens a stream; returns what closes it: as one that was lost, unless it ends clean."""
    record = registry.join(offer(name, nonce))
    registry.open_stream(name, record.incarnation, cancel := lambda: None)
    return lambda clean=False: registry.close_stream(record, cancel, clean=clean)


def test_a_process_that_joins_again_is_the_same_actor():
    registry = make_registry()
    first = registry.join(offer("a", 1))
    assert registry.join(offer("a", 1)) is first
    assert (first.slot, first.incarnation) == (0, 1)


def test_a_restarted_actor_keeps_its_slot_and_is_a_new_incarnation():
    registry = make_registry()
    registry.join(offer("a", 1))
    registry.join(offer("b", 2))
    again = registry.join(offer("a", 3))
    assert (again.slot, again.incarnation) == (0, 2)


def test_a_process_that_replaces_another_in_step_goes_on_with_its_rollouts():
    registry = make_registry(in_step=True)
    first = registry.join(offer("a", 1))
    for sequence in (1, 2, 3):
        registry.accepted(first, make_rollout(sequence))
    assert registry.join(offer("a", 2)).acknowledged_sequence == 3


def test_an_actor_of_an_earlier_learner_cannot_go_on_in_step():
    with pytest.raises(RefusedError, match=r"played for an earlier learner.*start the actor again"):
        make_registry(in_step=True).join(offer("a", 1, incarnation=1, acknowledged_sequence=3))


def test_an_unnamed_actor_is_given_a_name():
    registry = make_registry()
    names = {registry.join(offer("", nonce)).actor_id for nonce in range(3)}
    assert len(names) == 3


def test_too_many_actors_are_refused_until_one_has_gone():
    registry = make_registry(max_actors=1)
    close = streaming(registry, "a", 1)
    with pytest.raises(LimitExceededError, match="max_actors is 1"):
        registry.join(offer("b", 2))
    close(clean=True)
    assert registry.join(offer("b", 2)).slot == 1


def test_who_opens_no_stream_loses_its_slot_to_whoever_comes_next():
    registry = make_registry(max_actors=2, join_lease_s=-1.0)
    registry.join(offer("stays", 1))
    registry.open_stream("stays", 1, lambda: None)
    for nonce in range(5):
        assert registry.join(offer(f"stranger-{nonce}", nonce)).slot == 1
    assert [info.actor_id for info in registry.infos()] == ["stays", "stranger-4"]
    with pytest.raises(UnknownActorError, match="has not joined"):
        registry.open_stream("stranger-0", 1, lambda: None)
    assert registry.open_stream("stranger-4", 1, lambda: None).slot == 1
    with pytest.raises(LimitExceededError, match="max_actors is 2"):
        registry.join(offer("late", 9))


def test_who_has_played_keeps_its_slot_whatever_becomes_of_its_next_process():
    registry = make_registry(max_actors=1, join_lease_s=-1.0)
    streaming(registry, "a", 1)(clean=True)
    registry.join(offer("a", 2))
    assert registry.join(offer("b", 3)).slot == 1
    lost, _ = registry.infos()
    assert (lost.state, lost.last_error) == (ActorState.LOST, "joined and opened no stream within -1 s")
    with pytest.raises(LimitExceededError, match="max_actors is 1"):
        registry.open_stream("a", 2, lambda: None)
    streaming(registry, "b", 3)(clean=True)
    assert registry.open_stream("a", 2, lambda: None).slot == 0, "it was only slow"


def test_an_actor_that_comes_back_has_its_place_until_its_lease_ends():
    registry = make_registry(max_actors=1)
    streaming(registry, "a", 1)()
    registry.join(offer("a", 1))
    with pytest.raises(LimitExceededError, match="max_actors is 1"):
        registry.join(offer("b", 2))
    registry.open_stream("a", 1, lambda: None)


@pytest.mark.parametrize("seeds", range(10))
def test_no_more_than_max_actors_are_alive_however_they_come_and_go(seeds: int):
    failure = ActorFailure(exception_type="E", message="", traceback="", env_seed=0)
    for seed in range(50 * seeds, 50 * seeds + 50):
        rng = random.Random(seed)
        max_actors = rng.randint(1, 3)
        registry = make_registry(max_actors=max_actors)
        joined, streams = {}, []
        for _ in range(60):
            name = rng.choice("abcde")
            happens = rng.choice(["join", "open", "open", "close", "lost", "failed", "rejected"])
            with contextlib.suppress(LimitExceededError, ActorReplacedError):
                if happens == "join":
                    joined[name] = registry.join(offer(name, rng.randint(1, 2)))
                elif happens == "open" and name in joined:
                    cancel = functools.partial(int)
                    record = registry.open_stream(name, joined[name].incarnation, cancel)
                    streams.append((record, cancel))
                elif happens == "close" and streams:
                    record, cancel = streams.pop(rng.randrange(len(streams)))
                    registry.close_stream(record, cancel, clean=rng.random() < 0.5)
                elif happens == "lost":
                    registry.lost(name, "killed")
                elif happens == "failed" and streams:
                    registry.failed(rng.choice(streams)[0], failure)
                elif happens == "rejected" and streams:
                    registry.rejected(*rng.choice(streams), UnknownActorError("?"))
            states = [info.state for info in registry.infos()]
            assert registry.n_taken() <= max_actors, f"seed {seed}"
            assert registry.n_alive() == states.count(ActorState.STREAMING) <= max_actors, f"seed {seed}"


def test_of_too_many_names_the_one_gone_for_longest_is_forgotten(monkeypatch):
    monkeypatch.setattr("rollcast.learner.serving.registry.MAX_REMEMBERED_ACTORS", 3)
    registry = make_registry()
    streaming(registry, "stays", 0)
    for nonce in range(1, 6):
        streaming(registry, f"guest-{nonce}", nonce)(clean=True)
    assert {info.actor_id for info in registry.infos()} == {"stays", "guest-4", "guest-5"}
    assert registry.join(offer("guest-4", 9)).incarnation == 2, "who comes back makes nobody one too many"
    assert len(registry.infos()) == 3


def test_names_of_a_checkpoint_count_among_those_that_are_remembered(monkeypatch):
    registry = make_registry()
    for nonce in range(3):
        registry.join(offer(f"before-{nonce}", nonce))
    following = resumed(registry)
    monkeypatch.setattr("rollcast.learner.serving.registry.MAX_REMEMBERED_ACTORS", 3)
    following.join(offer("before-1", 1))
    following.join(offer("new", 9))
    assert set(following.state()) == {"before-1", "before-2", "new"}


def test_streams_need_a_join_and_the_newest_incarnation():
    registry = make_registry()
    with pytest.raises(UnknownActorError, match="has not joined"):
        registry.open_stream("a", 1, lambda: None)
    registry.join(offer("a", 1))
    registry.join(offer("a", 2))
    with pytest.raises(ActorReplacedError, match="replaced by incarnation 2"):
        registry.open_stream("a", 1, lambda: None)


def test_a_newer_process_ends_the_stream_of_the_older():
    registry = make_registry()
    ended = []
    old = registry.join(offer("a", 1))
    cancel = lambda: ended.append("old")  # noqa: E731 - identity matters
    registry.open_stream("a", 1, cancel)
    new = registry.join(offer("a", 2))
    assert ended == ["old"]
    registry.open_stream("a", 2, lambda: None)
    registry.close_stream(old, cancel, clean=False)
    assert new.state is ActorState.STREAMING, "the old stream's end says nothing of the new one"
    assert registry.n_alive() == 1


def test_a_process_that_was_replaced_does_not_come_back():
    registry = make_registry()
    registry.join(offer("a", 1))
    newer = registry.join(offer("a", 2))
    with pytest.raises(ActorReplacedError, match="give each actor its own --actor-id"):
        registry.join(offer("a", 1))
    assert registry.join(offer("a", 2)) is newer, "the newer process is left in peace"


def test_a_learner_without_memory_takes_the_newer_of_two_processes_of_a_name_whichever_comes_first():
    registry = make_registry()
    newer = registry.join(offer("a", 2, incarnation=2, acknowledged_sequence=5))
    with pytest.raises(ActorReplacedError, match="since this process did"):
        registry.join(offer("a", 1, incarnation=1, acknowledged_sequence=9))
    assert registry.join(offer("a", 2, incarnation=2)) is newer

    registry = make_registry()
    registry.join(offer("a", 1, incarnation=1, acknowledged_sequence=9))
    newer = registry.join(offer("a", 3, incarnation=3, acknowledged_sequence=5))
    assert (newer.incarnation, newer.acknowledged_sequence) == (3, 5), "it goes on with its own counts"
    with pytest.raises(ActorReplacedError, match="since this process did"):
        registry.join(offer("a", 1, incarnation=1, acknowledged_sequence=9))


def test_of_the_processes_that_had_a_name_the_last_64_are_remembered():
    registry = make_registry()
    for nonce in range(100):
        registry.join(offer("a", nonce))
    assert resumed(registry).state()["a"]["replaced_nonces"] == tuple(range(35, 99))
    for nonce in (35, 98):
        with pytest.raises(ActorReplacedError):
            registry.join(offer("a", nonce))


def test_infos_tell_what_happened():
    registry = make_registry()
    record = registry.join(offer("a", 1))
    registry.open_stream("a", 1, lambda: None)
    registry.accepted(record, make_rollout(policy_version=5))
    registry.failed(record, ActorFailure(exception_type="ValueError", message="boom", traceback="...", env_seed=9))
    (info,) = registry.infos()
    assert (info.rollouts, info.env_steps, info.policy_version) == (1, 6, 5)
    assert info.state is ActorState.FAILED
    assert info.last_error == "ValueError: boom (environment seed 9)"


def test_long_reasons_are_cut():
    registry = make_registry()
    for nonce, name in enumerate("ab"):
        streaming(registry, name, nonce)
    registry.rejected(registry.join(offer("a", 0)), lambda: None, InvalidRolloutError("x" * 10**6))
    registry.lost("b", "y" * 10**6)
    assert [len(info.last_error) for info in registry.infos()] == [MAX_REASON_LENGTH] * 2


def test_a_traceback_is_told_by_the_stream_of_its_actor_or_at_the_end_of_its_process():
    registry = make_registry()
    streaming(registry, "a", 1)
    record = registry.join(offer("a", 1))
    failure = ActorFailure(exception_type="ValueError", message="no licence", traceback="where")
    assert registry.failed(record, failure) == "\nwhere"
    # the frames of its process are around those of its stream
    assert registry.lost("a", "no licence", dataclasses.replace(failure, traceback="main\nwhere")) is None
    later = dataclasses.replace(failure, message="no display", traceback="elsewhere")
    assert registry.lost("a", "no display", later) == "\nelsewhere"
    assert registry.lost("never joined", "no display", later) == " ValueError, with the same traceback as before"
    assert registry.lost("a", "killed") is None


def test_reserved_names_have_their_slots_whoever_joins_first():
    registry = make_registry(reserved_names=["local-0", "local-1"])
    guest, second, first = (registry.join(offer(name, nonce)) for nonce, name in enumerate(["x", "local-1", "local-0"]))
    assert (guest.slot, second.slot, first.slot) == (2, 1, 0)
    assert registry.join(offer("y", 9)).slot == 3


def test_a_rank_hands_out_every_other_slot_and_says_who_is_there():
    class Second(OneLearner):
        rank, n_ranks = 1, 3

        def __init__(self) -> None:
            self.names: list[str] = []

        def took(self, name: str) -> None:
            self.names.append(name)

    assignment = Second()
    registry = make_registry(reserved_names=["local-0"], assignment=assignment)
    slots = [registry.join(offer(name, nonce)).slot for nonce, name in enumerate(["x", "local-0", "y"])]
    assert slots == [4, 1, 7]
    assert assignment.names == ["x", "local-0", "y"]
    assert registry.n_taken() == 3


def resumed(registry: ActorRegistry) -> ActorRegistry:
    """The registry of the learner that comes after this one, with the same checkpoint."""
    following = make_registry()
    following.load_state(json.loads(json.dumps(registry.state())))
    return following


def take(registry: ActorRegistry, name: str, incarnation: int, sequence: int) -> None:
    registry.taken(make_rollout(actor_id=name, incarnation=incarnation, sequence=sequence))


# 4 and 5 are in the checkpoint; of what was acknowledged after it, the actor has nothing any more.
@pytest.mark.parametrize(("acknowledged", "goes_on"), [(3, 5), (8, 8)], ids=["before", "after the checkpoint"])
def test_an_actor_that_outlived_its_learner_goes_on_where_it_was(acknowledged: int, goes_on: int):
    registry = make_registry()
    registry.join(offer("other", 1))
    registry.join(offer("a", 2))
    take(registry, "a", 1, 5)
    following = resumed(registry)
    assert following.infos() == [], "nobody has joined yet"
    newcomer = following.join(offer("b", 9))
    back = following.join(offer("a", 2, incarnation=1, acknowledged_sequence=acknowledged))
    assert (back.slot, back.incarnation, back.acknowledged_sequence) == (1, 1, goes_on)
    assert newcomer.slot == 2, "the slots of those who may come back are taken"


def test_an_actor_continues_after_what_another_learner_has_acknowledged_since_its_first_join():
    registry = make_registry()
    registry.join(offer("a", 2, incarnation=1, acknowledged_sequence=3))
    # the last answer of the learner before this one was on its way
    record = registry.join(offer("a", 2, incarnation=1, acknowledged_sequence=4))
    assert record.acknowledged_sequence == 4
    registry.open_stream("a", 1, cancel := lambda: None)
    registry.accepted(record, make_rollout(actor_id="a", incarnation=1, sequence=5))
    registry.close_stream(record, cancel, clean=False)
    # of another rank, at which the actor has been meanwhile
    registry.join(offer("a", 2, incarnation=1, acknowledged_sequence=9))
    assert record.acknowledged_sequence == 9
    registry.join(offer("a", 2, incarnation=1, acknowledged_sequence=8))
    assert record.acknowledged_sequence == 9, "an older word changes nothing"


def test_the_mark_is_what_was_taken_and_not_what_was_acknowledged():
    registry = make_registry()
    record = registry.join(offer("a", 2))
    registry.accepted(record, make_rollout(actor_id="a", incarnation=1, sequence=6))
    take(registry, "a", 1, 4)
    take(registry, "a", 7, 9)
    assert registry.state()["a"]["taken_sequence"] == 4, "another incarnation's does not count"
    assert resumed(resumed(registry)).state() == resumed(registry).state()


def test_a_process_that_is_new_to_the_resumed_learner_gets_the_next_incarnation():
    registry = make_registry()
    registry.join(offer("a", 2))
    assert resumed(registry).join(offer("a", 3)).incarnation == 2
    joined_since = resumed(registry).join(offer("a", 3, incarnation=4, acknowledged_sequence=6))
    assert (joined_since.incarnation, joined_since.acknowledged_sequence) == (4, 6)
    following = resumed(registry)
    following.join(offer("a", 3))
    for one in (following, resumed(following)):
        with pytest.raises(ActorReplacedError):
            one.join(offer("a", 2))


def test_counts_the_rollouts_of_all_actors_also_of_those_it_has_forgotten():
    registry = make_registry(join_lease_s=0.0)
    for name, nonce, n_rollouts in (("a", 1, 2), ("b", 2, 3)):
        record = registry.join(offer(name, nonce))
        for sequence in range(1, 1 + n_rollouts):
            registry.accepted(record, make_rollout(actor_id=name, sequence=sequence))
    registry.join(offer("c", 3))
    assert [info.actor_id for info in registry.infos()] == ["c"], "the leases of the others have ended"
    assert registry.n_rollouts == 5


def test_counts_the_episodes_that_actors_have_dropped_whatever_becomes_of_them():
    def dropped(n: int) -> ActorActivity:
        return ActorActivity(state=ActingState.ACTING, seconds=(0.0,) * 6, dropped_episodes=n)

    registry = make_registry()
    first, other = registry.join(offer("a", 1)), registry.join(offer("b", 2))
    for record, n in ((first, 3), (first, 3), (other, 1), (first, 5)):
        registry.acted(record, dropped(n))
    assert registry.n_dropped_episodes == 6
    registry.acted(registry.join(offer("a", 3)), dropped(2))
    assert registry.n_dropped_episodes == 8, "a new process counts from 0"
    for record in (first, other):
        registry.acted(record, dropped(2**64 - 1))
    assert registry.n_dropped_episodes == 2**53, "the status can say it, whatever an actor says"


def test_the_cores_of_an_actor_are_those_between_its_last_two_reports():
    registry = make_registry()
    record = registry.join(offer("a", 1))
    used = []
    for seconds, cpu_s in ((1.0, 5.0), (3.0, 8.0), (5.0, 8.0), (5.0, 9.0), (6.0, 1.0), (6.0 + 1e-300, 1e300)):
        spent = (seconds, *[0.0] * 5)
        registry.acted(record, ActorActivity(state=ActingState.ACTING, seconds=spent, cpu_s=cpu_s, memory_bytes=2**30))
        (info,) = registry.infos()
        used.append(info.cpu_cores)
    assert used == [0.0, 1.5, 0.0, 0.0, 0.0, 0.0]
    assert info.memory_bytes == 2**30


class Clock:
    """The registry's clock, in whole seconds; it begins with that of the records, which is the machine's."""

    def __init__(self) -> None:
        self.now = math.ceil(time.monotonic())

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("rollcast.learner.serving.registry.time", clock)
    return clock


def test_the_missing_are_those_that_lost_their_connection_lately_and_did_not_come_back(clock: Clock):
    registry = make_registry(max_actors=5)
    names = ("streams", "left", "lost-long-ago", "lost", "came-back")
    close = {name: streaming(registry, name, nonce) for nonce, name in enumerate(names, start=1)}
    close["left"](clean=True)
    close["lost-long-ago"]()
    clock.now += 31.0
    close["lost"]()
    close["came-back"]()
    assert registry.missing(30.0) == ["came-back", "lost"]
    registry.join(offer("came-back", 5))
    registry.join(offer("lost", 4))
    assert registry.missing(30.0) == ["came-back", "lost"], "they have no stream yet"
    registry.open_stream("came-back", 1, lambda: None)
    assert registry.missing(30.0) == ["lost"]
    for name in ("lost", "unknown", "streams"):
        registry.told_end(name)
    assert registry.missing(30.0) == []
    assert (states(registry)["lost"], states(registry)["streams"]) == ("LEFT", "STREAMING")


def states(registry: ActorRegistry) -> dict[str, str]:
    return {info.actor_id: info.state.name for info in registry.infos()}


def test_an_actor_that_was_killed_and_started_again_under_another_name_is_not_lost_for_ever(clock: Clock):
    registry = make_registry()
    lose_first, lose_second = streaming(registry, "host-11", 1), streaming(registry, "host-12", 2)
    lose_first()
    lose_second()
    clock.now += 1.0
    streaming(registry, "host-13", 3)
    clock.now += 50.0
    assert states(registry) == {"host-11": "LOST", "host-12": "LOST", "host-13": "STREAMING"}, "they may come back"
    clock.now += 10.0
    assert states(registry) == {"host-11": "LOST", "host-12": "LEFT", "host-13": "STREAMING"}, "one is missing"
    streaming(registry, "host-14", 4)
    assert states(registry)["host-11"] == "LEFT"


def test_an_actor_that_comes_back_under_its_name_replaces_nobody(clock: Clock):
    registry = make_registry()
    lose_left, lose_right = streaming(registry, "left-arm", 1), streaming(registry, "right-arm", 2)
    lose_left()
    lose_right()
    clock.now += 61.0
    streaming(registry, "left-arm", 1)
    assert states(registry) == {"left-arm": "STREAMING", "right-arm": "LOST"}
    streaming(registry, "right-arm", 3)
    assert states(registry) == {"left-arm": "STREAMING", "right-arm": "STREAMING"}


@pytest.mark.parametrize("how", ["lost", "failed", "refused", "opened no stream"])
def test_nobody_waits_for_an_actor_that_has_been_away_for_an_hour(clock: Clock, how: str):
    registry = make_registry()
    record = registry.join(offer("a", 1))
    registry.open_stream("a", 1, cancel := lambda: None)
    if how == "failed":
        registry.failed(record, ActorFailure(exception_type="E", message="", traceback="", env_seed=0))
    elif how == "refused":
        registry.rejected(record, cancel, UnknownActorError("?"))
    registry.close_stream(record, cancel, clean=False)
    if how == "opened no stream":
        registry.join(offer("a", 2))
        clock.now += 3600.0
        registry.join(offer("b", 3))
    clock.now += 3600.0
    assert states(registry)["a"] in ("LOST", "FAILED", "REFUSED")
    clock.now += 1.0
    assert states(registry)["a"] == "LEFT"
