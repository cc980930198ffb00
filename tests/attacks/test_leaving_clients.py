"""Clients come by every RPC of every server and leave again: nothing grows, and no call is kept."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.learner.history.events import N_EVENTS
from rollcast.services.limits.limits import MAX_BUNDLE_PARTS
from tests.leaving_clients import (
    AT_ONCE,
    Kept,
    Served,
    Way,
    come_and_leave,
    only_new_objects,
    opener_of,
    serving_environments,
    serving_learner,
    serving_policy,
    serving_relay,
    serving_scaler,
)
from tests.processes import wait_until

pytestmark = pytest.mark.slow

# Each server, and what it answers: a relay refuses operators, and computes no actions.
ANSWERED = {
    "learner": ("/",),
    "relay": (
        "/grpc",
        "/rollcast.v1.RolloutService",
        "/rollcast.v1.PolicyService/GetPolicy",
        "/rollcast.v1.PolicyService/SubscribePolicy",
        "/rollcast.v1.RelayService",
    ),
    "scaler": ("/",),
    "environments": ("/",),
    # it refuses all control
    "policy": ("/grpc", "/rollcast.v1.PolicyService", "/rollcast.v1.LearnerService/GetStatus"),
}
ALONE = {"scaler": serving_scaler, "environments": serving_environments}
OF_A_FOLDER = {"learner": serving_learner, "relay": serving_learner, "policy": serving_policy}
# gRPC's own servicer lacks it.
LACKED = "/grpc.health.v1.Health/List"
# Objects that a server remembers on purpose: the largest number of each type.
REMEMBERED = {
    "rollcast.services.history.history.HistoryEvent": N_EVENTS,
    # the last bundle that a relay has sent, until the next
    "rollcast.v1.relay_pb2.UpwardPart": MAX_BUNDLE_PARTS,
}
# Objects of threads that a pool has made, and of libraries: one kept for each of 1,000 calls is above it.
CONTAINERS = 600
# Seven and a half of the MiB, and 2,000 of the blocks, are seen: names, events, and what is made when it is first used.
HEAP_BYTES = 32 << 20
BLOCKS = 20_000


@pytest.fixture
def served(who: str, tmp_path: Path) -> Iterator[Served]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_new_objects())
        if who in ALONE:
            found = stack.enter_context(ALONE[who]())
        else:
            found = stack.enter_context(OF_A_FOLDER[who](tmp_path))
            stack.callback(found.channel.close)
        if who == "relay":
            found = stack.enter_context(serving_relay(found.address))
        with contextlib.closing(found.channel):
            yield found


@pytest.mark.parametrize("who", ANSWERED)
@pytest.mark.parametrize("n", [3 * AT_ONCE, pytest.param(1000, marks=[pytest.mark.whole, pytest.mark.timeout(5400)])])
def test_nothing_grows_and_no_call_is_kept(served: Served, who: str, n: int):
    # a relay's own calls of the learner behind it
    n_calls_at_rest, interval_at_rest = Kept.now().n_calls, sys.getswitchinterval()
    methods = list(served.methods())
    lacking = [name for name, method in methods if opener_of(name, method) is None]
    assert not lacking, f"_OPENERS of tests/leaving_clients.py lacks {lacking}; say how a client opens them"
    for way, (name, method) in itertools.product(Way, methods):
        # Of the whole walk enough to fill a server's pool of threads: a call keeps its thread for a second.
        come_and_leave(served, name, method, way, max(2 * AT_ONCE, n // 4))
    for way in Way:
        wait_until(lambda: Kept.now().n_calls <= n_calls_at_rest, "the end of the calls before")
        before = Kept.now()
        for name, method in methods:
            outcomes = come_and_leave(served, name, method, way, n)
            assert sum(outcomes.values()) == n
            if way is Way.CLEAN and name.startswith(ANSWERED[who]) and name != LACKED:
                assert outcomes["answered"], f"nobody was answered by {name}: {outcomes}"
        wait_until(lambda: Kept.now().n_calls <= n_calls_at_rest, "the end of all calls")
        # The objects of a call are let go of a moment after its end.
        with contextlib.suppress(AssertionError):
            wait_until(lambda before=before: not growth(before, Kept.now()), "nothing to have grown")
        assert not growth(before, Kept.now()), way.value
    assert sys.getswitchinterval() == interval_at_rest, "it is longer while streams are open"


def growth(before: Kept, after: Kept) -> dict[str, tuple[int, int]]:
    """Returns what has grown by more than it may: its name -> how much there was, and is."""
    found = {
        name: (before.objects[name], number)
        for name, number in after.objects.items()
        # a thread that waits for the next has a name for the last; one kept for each call is more, whatever the RPC
        if number > max(before.objects[name] + AT_ONCE, REMEMBERED.get(name, 0))
    }
    bounds = {
        "containers": CONTAINERS,
        # a pool makes them as more calls are there at once
        "threads": 2 * AT_ONCE,
        "descriptors": AT_ONCE,
        "heap_bytes": HEAP_BYTES,
        "blocks": BLOCKS,
    }
    counts = {name: (getattr(before, name), getattr(after, name)) for name in bounds}
    return found | {name: (was, now) for name, (was, now) in counts.items() if now > was + bounds[name]}
