import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest

from rollcast.services.limits.limits import MAX_CREDITED_POLICY_BYTES
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.subscribers import Subscribers
from tests.processes import DEADLINE_S, wait_until


def version(number, n_floats=1):
    return encode_policy(number, {"w": np.full(n_floats, number, np.float32)})


def large(number):
    return version(number, 1 << 20)


@pytest.fixture
def subscribers():
    return Subscribers()


def waits(subscribers, n=1):
    """Waits until `n` subscribers wait."""
    wait_until(lambda: subscribers.n_waiting == n, "the subscribers wait")


@pytest.fixture
def no_time(monkeypatch):
    """Lets no time pass, so that nobody is sent what is not wanted."""
    monkeypatch.setattr("rollcast.services.policies.subscribers.time", SimpleNamespace(monotonic=lambda: 1.0))


def test_waiting_gives_the_newest_and_skips_those_between(subscribers):
    with subscribers.subscription(0, "") as wait, ThreadPoolExecutor(1) as thread:
        assert wait(0.0) is None
        waiting = thread.submit(wait, DEADLINE_S)
        waits(subscribers)
        subscribers.offer(version(1))
        assert waiting.result(DEADLINE_S).version == 1
        subscribers.offer(version(2))
        subscribers.offer(version(3))
        assert wait(0.0).version == 3
        assert wait(0.0) is None


@pytest.mark.parametrize("actor_id", ["", "left-arm"])
def test_the_end_wakes_those_who_wait_after_the_last_version(subscribers, actor_id):
    with subscribers.subscription(0, actor_id) as wait, ThreadPoolExecutor(1) as thread:
        subscribers.offer(version(1))
        assert wait(0.0).version == 1
        waiting = thread.submit(wait, 60.0)
        waits(subscribers)
        subscribers.end()
        assert waiting.result(DEADLINE_S) is None
        assert subscribers.ended
        with subscribers.subscription(0, "late") as late:
            assert late(60.0).version == 1, "whoever comes late gets the last version"
            assert late(60.0) is None


@pytest.mark.parametrize("actor_id", ["", "left-arm"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_wait_ends_when_the_subscribers_call_ends(subscribers, actor_id, is_paused):
    ends = []
    with subscribers.subscription(0, actor_id, ends.append) as wait, ThreadPoolExecutor(1) as thread:
        subscribers.offer(version(1))
        assert wait(0.0).version == 1
        if is_paused:
            subscribers.pause(actor_id)
        waiting = thread.submit(wait, 10 * DEADLINE_S)
        waits(subscribers)
        ends[0]()
        assert waiting.result(DEADLINE_S) is None
        subscribers.offer(version(2))
        assert wait(10 * DEADLINE_S) is None, "nobody reads the version"


def with_many_actors(subscribers, stack, n=1000):
    """Opens so many subscriptions of actors that none gets a large version which it does not want; returns their waits.

    Each has had one for 30 s before it is sent another.
    """
    return [stack.enter_context(subscribers.subscription(0, f"actor-{i}")) for i in range(n)]


def test_actor_that_subscribes_before_the_first_version_is_woken_by_it(subscribers):
    with subscribers.subscription(0, "actor-0") as wait, ThreadPoolExecutor(1) as threads:
        first = threads.submit(wait, 3 * DEADLINE_S)
        waits(subscribers)
        subscribers.offer(version(1))
        assert first.result(DEADLINE_S).version == 1


def test_actor_that_plays_is_not_woken_until_it_wants_a_policy(subscribers):
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        wait, *_ = with_many_actors(subscribers, stack)
        subscribers.offer(large(1))
        assert wait(0.0).version == 1, "it has none"
        playing = threads.submit(wait, 60.0)
        waits(subscribers)
        subscribers.offer(large(2))
        subscribers.offer(large(3))
        assert not playing.done()
        subscribers.want("actor-0", 3)
        assert playing.result(DEADLINE_S).version == 3


def test_actor_whose_rollout_waits_for_room_is_sent_nothing_until_it_wants_a_policy(subscribers):
    with subscribers.subscription(0, "actor-0") as wait, ThreadPoolExecutor(1) as thread:
        subscribers.offer(version(1))
        assert wait(0.0).version == 1
        subscribers.pause("actor-0")
        waiting = thread.submit(wait, 60.0)
        waits(subscribers)
        for number in (2, 3):
            subscribers.offer(version(number))
            assert not waiting.done()
        subscribers.want("actor-0", 3)
        assert waiting.result(DEADLINE_S).version == 3
        subscribers.pause("actor-0")
        subscribers.want("actor-0", 3)
        waiting = thread.submit(wait, 60.0)
        waits(subscribers)
        subscribers.offer(version(4))
        assert waiting.result(DEADLINE_S).version == 4, "it has what it wants, and plays"


def paused_with_version_1(subscribers, stack, threads):
    """Lets actor-0 of many wait with version 1 until its rollout has come; returns its wait."""
    wait, *_ = with_many_actors(subscribers, stack)
    subscribers.offer(large(1))
    assert wait(0.0).version == 1
    waiting = threads.submit(wait, 60.0)
    waits(subscribers)
    subscribers.pause("actor-0")
    return waiting


def test_actor_whose_rollout_comes_while_it_waits_is_looked_at_by_no_version(subscribers):
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        waiting = paused_with_version_1(subscribers, stack, threads)
        subscribers.want("actor-0", 1)
        assert not waiting.done(), "it plays, and has what it wants"
        subscribers.pause("actor-0")
        subscribers.end()
        assert waiting.result(DEADLINE_S) is None


def test_actor_that_wants_a_version_to_come_gets_it_when_it_comes(subscribers):
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        wait, *_ = with_many_actors(subscribers, stack)
        subscribers.offer(large(1))
        wait(0.0)
        subscribers.want("actor-0", 2)
        waiting = threads.submit(wait, 60.0)
        waits(subscribers)
        subscribers.want("nobody", 2)
        assert not waiting.done()
        subscribers.offer(large(2))
        assert waiting.result(DEADLINE_S).version == 2


def test_playing_actor_gets_the_last_version_all_the_same(subscribers):
    with subscribers.subscription(0, "actor-0") as wait:
        for number in (1, 2):
            subscribers.offer(version(number))
            assert wait(DEADLINE_S).version == number, "one actor alone is sent a thousand versions a second"


def test_playing_actor_gets_large_versions_less_often(subscribers, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("rollcast.services.policies.subscribers.time", SimpleNamespace(monotonic=lambda: now))
    with subscribers.subscription(0, "actor-0") as wait:
        subscribers.offer(large(1))
        assert wait(0.0).version == 1
        subscribers.offer(large(2))
        now += 0.02
        assert wait(0.0) is None
        now += 0.02
        assert wait(0.0).version == 2, "after 30 ms"
        subscribers.offer(large(3))
        subscribers.want("actor-0", 3)
        assert wait(0.0).version == 3, "with a credit it gets it at once"


def test_of_two_subscriptions_of_an_actor_each_gets_what_it_wants(subscribers, no_time):
    """One's client has gone; which, is not known: the one that was opened first may be served last."""
    with subscribers.subscription(0, "actor-0") as old:
        subscribers.offer(version(1))
        assert old(0.0).version == 1
        with subscribers.subscription(0, "actor-0") as new:
            assert new(0.0).version == 1
            subscribers.offer(version(2))
            subscribers.want("actor-0", 2)
            assert old(0.0).version == 2
            assert subscribers.sent_version("actor-0") == 1, "what it has for certain"
            assert new(0.0).version == 2
        assert subscribers.sent_version("actor-0") == 2


@pytest.mark.parametrize("seed", range(100))
def test_no_open_subscription_of_an_actor_is_forgotten(subscribers, no_time, seed):
    """Subscriptions open and close in any order; each gets what is wanted, nothing twice or out of order."""
    rng, newest, has = random.Random(seed), 0, {}
    with ExitStack() as stack:
        opened = []
        for _ in range(60):
            happens = rng.choice(["open", "close", "offer", "want", "take", "pause", "wait"])
            if happens == "open":
                own = ExitStack()
                wait = own.enter_context(subscribers.subscription(rng.randint(0, newest), "actor-0"))
                opened.append((own, wait))
                stack.push(own)
                has[wait] = 0
            elif happens == "close" and opened:
                own, wait = opened.pop(rng.randrange(len(opened)))
                own.close()
            elif happens == "offer":
                newest += 1
                subscribers.offer(version(newest))
            elif happens == "pause":
                subscribers.pause("actor-0")
            elif happens == "take" and (taken := subscribers.take("actor-0")) is not None:
                assert taken.version == newest
                has.update(dict.fromkeys(has, newest))
            elif happens == "wait" and opened:
                got = rng.choice(opened)[1]
                came = got(0.0)
                if came is not None:
                    assert came.version == newest > has[got]
                    has[got] = newest
        newest += 1
        subscribers.offer(version(newest))
        subscribers.want("actor-0", newest)
        assert [wait(0.0).version for _, wait in opened] == [newest] * len(opened)


def test_versions_only_rise_for_many_subscribers_at_once(subscribers):
    n_versions, received = 300, [[] for _ in range(16)]

    def subscribe(i):
        with subscribers.subscription(0, "" if i % 2 else f"actor-{i}") as wait:
            while not received[i] or received[i][-1] < n_versions:
                encoded = wait(3 * DEADLINE_S)
                assert encoded is not None, "the last version did not come"
                received[i].append(encoded.version)

    threads = [threading.Thread(target=subscribe, args=(i,)) for i in range(len(received))]
    for thread in threads:
        thread.start()
    for number in range(1, n_versions + 1):
        subscribers.offer(version(number))
        subscribers.want("actor-2", number)
    deadline = time.monotonic() + DEADLINE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "one was not woken, and waits for its deadline"
    assert [versions[-1] for versions in received] == [n_versions] * len(received)
    assert all(versions == sorted(set(versions)) for versions in received)
    assert subscribers.n_waiting == 0


class TestPoliciesWithAnswers:
    """Versions that an actor's rollout stream takes, and its subscription does not bring."""

    def test_what_was_taken_is_not_sent_besides(self, subscribers, no_time):
        with subscribers.subscription(0, "actor-0") as wait:
            subscribers.offer(version(1))
            assert subscribers.take("actor-0").version == 1
            assert subscribers.take("actor-0") is None
            assert wait(0.0) is None
            subscribers.want("actor-0", 1)
            assert wait(0.0) is None
            subscribers.want("actor-0", 2)
            subscribers.offer(version(2))
            assert wait(0.0).version == 2, "it had no other answer"
            assert subscribers.take("actor-0") is None

    def test_taking_wakes_nobody(self, subscribers):
        with ExitStack() as stack, ThreadPoolExecutor(1) as threads:
            waiting = paused_with_version_1(subscribers, stack, threads)
            subscribers.offer(version(2))
            assert subscribers.take("actor-0").version == 2
            subscribers.want("actor-0", 2)
            assert not waiting.done(), "it waits on, and may be woken again"
            subscribers.end()
            assert waiting.result(DEADLINE_S) is None, "it has had the last version"

    def test_version_that_is_too_old_for_the_next_rollout_is_not_taken(self, subscribers):
        with subscribers.subscription(0, "actor-0") as wait:
            subscribers.offer(version(4))
            assert subscribers.take("actor-0", at_least=5) is None
            assert wait(0.0).version == 4, "it is its subscription's"
            subscribers.offer(version(5))
            assert subscribers.take("actor-0", at_least=5).version == 5

    @pytest.mark.parametrize("n_floats", [16_000, 17_000])
    def test_only_small_versions_are_taken(self, subscribers, n_floats):
        with subscribers.subscription(0, "actor-0") as wait:
            subscribers.offer(version(1, n_floats))
            taken = subscribers.take("actor-0")
            assert (taken is not None) == (4 * n_floats < MAX_CREDITED_POLICY_BYTES)
            assert (wait(0.0) is None) == (taken is not None)

    def test_actor_that_has_lost_an_answer_gets_its_policy_again(self, subscribers):
        with subscribers.subscription(3, "actor-0"):
            subscribers.offer(version(4))
            assert subscribers.take("actor-0", holds_version=3).version == 4
            assert subscribers.take("actor-0", holds_version=4) is None
            assert subscribers.take("actor-0", holds_version=3).version == 4, "its subscription has outlived its stream"
            assert subscribers.take("actor-0", holds_version=9) is None, "what was sent last counts"

    def test_there_is_nothing_for_an_actor_without_a_subscription_nor_before_the_first_version(self, subscribers):
        with subscribers.subscription(0, "actor-0"):
            assert subscribers.take("actor-0") is None
            subscribers.offer(version(1))
            assert subscribers.take("nobody") is None

    def test_the_version_that_an_actor_was_sent_is_known(self, subscribers):
        assert subscribers.sent_version("actor-0") == 0
        with subscribers.subscription(2, "actor-0") as wait:
            assert subscribers.sent_version("actor-0") == 2, "it had that before"
            subscribers.offer(version(3))
            assert subscribers.sent_version("actor-0") == 2
            assert wait(0.0).version == subscribers.sent_version("actor-0") == 3
            subscribers.offer(version(4))
            subscribers.take("actor-0")
            assert subscribers.sent_version("actor-0") == 4
        assert subscribers.sent_version("actor-0") == 0
