"""The work of a learner for a rollout does not grow with the actors that are connected, counted over all its parts."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks.synthetic_actors import cartpole_spaces
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors import served
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.services.limits import stream_gate
from rollcast.services.limits.limits import Limits
from rollcast.services.policies import service, subscribers
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.process import waiting
from tests.processes import ROOT, environment, wait_until

pytestmark = pytest.mark.slow

BATCH, N_BATCHES = 8, 40
FEW, MANY = 20, 200
# Seconds after which a thread that waits may look around, or do something that nobody asked for.
NEVER_S = 600.0


@contextmanager
def counted_calls() -> Iterator[Iterator[int]]:
    """Counts the calls of functions in this thread, and in all that are started meanwhile: `next` tells the count."""
    counts = itertools.count()

    def count(_frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            next(counts)

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def synthetic_actors(address: str, n_actors: int) -> "subprocess.Popen[bytes]":
    """Starts a process of actors, each with streams of its own, which play as fast as their credits allow."""
    command = [sys.executable, "-m", "benchmarks.synthetic_actors", address, "--actors", str(n_actors)]
    return subprocess.Popen(command, cwd=ROOT, env=environment())


@contextmanager
def played_by(actors: RemoteDistributedActors, n_actors: int) -> Iterator[None]:
    """Has synthetic actors play. The learner ends before they do, so that it misses none.

    If one cannot play on, which the process says, a wait for batches ends.
    """
    with ExitStack() as stack:
        stack.enter_context(actors)
        process = synthetic_actors(actors.addresses[0], n_actors)

        def watch() -> None:
            if process.wait():
                actors.interrupt()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            stack.close()
            process.kill()
            watcher.join()


def remote_actors(n_actors: int, limits: Limits) -> RemoteDistributedActors:
    """Makes actors that dial in; none starts with an old policy."""
    policy = TorchPolicy(cartpole_spaces(), PolicySpec(hidden_sizes=(8,)))
    serving = ServingOptions(addresses=("127.0.0.1:0",), max_actors=n_actors, bounded_staleness=True, limits=limits)
    return RemoteDistributedActors(policy, 8, BATCH, 1.1, envs_per_actor=1, serving=serving)


def update(actors: RemoteDistributedActors) -> None:
    """Takes a batch, and casts the next version of the policy."""
    actors.collect_outputs("cpu")
    actors.broadcast_updated_policy(actors.policy.state_arrays())


def calls_a_rollout(n_actors: int) -> float:
    """Returns the calls that a learner makes for a rollout, in all its threads, while so many actors play."""
    limits = Limits(
        calls_per_second=1e5,
        calls_per_second_per_host=1e5,
        # All open their two calls in one moment.
        max_half_open_calls=2 * n_actors,
        max_half_open_calls_per_host=2 * n_actors,
        # One after the other joins, before the first opens its stream.
        join_lease_s=NEVER_S,
    )
    actors = remote_actors(n_actors, limits)
    with counted_calls() as counts, played_by(actors, n_actors):
        # The first rollouts wait until all have begun. gRPC takes up one new call at a time, after all that has come on
        # streams before; a call that it has not taken up within 30 s is cancelled.
        wait_until(lambda: actors.n_actors_alive == n_actors or actors.interrupted, f"{n_actors} actors")
        while sum(info.rollouts > 1 for info in actors.actor_infos) < n_actors:
            update(actors)
        began = next(counts)
        for _ in range(N_BATCHES):
            update(actors)
        return (next(counts) - began) / (BATCH * N_BATCHES)


def test_a_rollout_is_as_much_work_with_200_actors_as_with_20(monkeypatch: pytest.MonkeyPatch):
    # What is done once in a while would count too, and more of it where the machine is slow.
    for module, name in ((waiting, "LOOK_S"), (service, "_WAIT_S"), (stream_gate, "_LOOK_S")):
        monkeypatch.setattr(module, name, NEVER_S)
    # Versions go to those that wait for them alone.
    monkeypatch.setattr(subscribers, "_SHARE", 1 / NEVER_S)
    # The learner tells whom it waits for.
    monkeypatch.setattr(served, "explain_wait", lambda *_arguments, **_options: "")
    # Threads that meet at another moment only add calls: the least of two runs is nearer to the work.
    few = min(calls_a_rollout(FEW) for _ in range(2))
    many = calls_a_rollout(MANY)
    if many >= 1.2 * few:
        many = min(many, calls_a_rollout(MANY))
    assert many < 1.2 * few, f"{few:.0f} calls a rollout with {FEW} actors, {many:.0f} with {MANY}"
