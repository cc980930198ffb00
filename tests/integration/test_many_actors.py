"""The work of a learner for a rollout does not grow with the actors that are connected, counted over all its parts."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.synthetic_actors import cartpole_spaces
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.services.limits import stream_gate
from rollcast.services.limits.limits import Limits
from rollcast.services.policies import service
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.process import waiting
from tests.processes import ROOT, environment

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


@contextmanager
def synthetic_actors(address: str, n_actors: int) -> Iterator[None]:
    """Runs actors in one process, each with streams of its own, which play as fast as their credits allow."""
    command = [sys.executable, "-m", "benchmarks.synthetic_actors", address, "--actors", str(n_actors)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        yield
    finally:
        process.kill()
        process.wait()


def calls_a_rollout(n_actors: int) -> float:
    """Returns the calls that a learner makes for a rollout, in all its threads, while so many actors play."""
    policy = TorchPolicy(cartpole_spaces(), PolicySpec(hidden_sizes=(8,)))
    serving = ServingOptions(
        addresses=("127.0.0.1:0",),
        max_actors=n_actors,
        bounded_staleness=True,
        limits=Limits(calls_per_second=1e5, calls_per_second_per_host=1e5),
    )
    with counted_calls() as counts:
        actors = RemoteDistributedActors(policy, 8, BATCH, 1.1, envs_per_actor=1, serving=serving)
        with actors:

            def update() -> None:
                actors.collect_outputs("cpu")
                actors.broadcast_updated_policy(policy.state_arrays())

            with synthetic_actors(actors.addresses[0], n_actors):
                while sum(info.rollouts > 1 for info in actors.actor_infos) < n_actors:
                    update()
                began = next(counts)
                for _ in range(N_BATCHES):
                    update()
                return (next(counts) - began) / (BATCH * N_BATCHES)


def test_a_rollout_is_as_much_work_with_200_actors_as_with_20(monkeypatch: pytest.MonkeyPatch):
    # Clocks would count too, and more of them where the machine is slow.
    for module, name in ((waiting, "LOOK_S"), (service, "_WAIT_S"), (stream_gate, "_LOOK_S")):
        monkeypatch.setattr(module, name, NEVER_S)
    # Threads that meet at another moment only add calls: the least of two runs is nearer to the work.
    few, many = (min(calls_a_rollout(n) for _ in range(2)) for n in (FEW, MANY))
    assert many < 1.2 * few, f"{few:.0f} calls a rollout with {FEW} actors, {many:.0f} with {MANY}"
