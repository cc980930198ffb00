"""Measures what assembling the next batch beside the update saves the trainer, and what it costs.

    python -m benchmarks.ahead [--seconds 2] [--rounds 5]

With and without it, in turns in the same run:

    queued    Rollouts are in memory and in the queue as soon as there is room, so that nothing is waited for but
              assembly. An update sleeps for 5 ms, as a trainer does whose GPU is busy, or is IMPALA's on the CPU.
    actors    Two processes of actors step CartPole; the learner and they share the machine's cores.

The share is of the trainer's time in `collect_outputs`; medians of all rounds. The ratio is the median of the ratios of
the rounds' env steps per second.
"""

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from gymnasium.spaces import Box

from benchmarks.ingest import Load, synthetic_rollout
from benchmarks.table import Figure, print_table, ratio
from rollcast.services.policies.policies import PolicySpec

if TYPE_CHECKING:
    from rollcast.learner.actors.base import DistributedActors
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.batch import Batch

_DEVICE_S: Final = 0.005
_FLOATS: Final = Box(-1, 1, (4,), np.float32)
_STACKS: Final = Box(0, 255, (4, 84, 84), np.uint8)
# Name, rollouts, and B.
QUEUED: Final = (
    ("T=20, B=8 of 4 floats, in 2 rollouts", Load("tiny", _FLOATS, n_steps=20, n_envs=4, target=""), 8),
    ("T=32, B=64 of 4 floats, in 16 rollouts", Load("small", _FLOATS, n_steps=32, n_envs=4, target=""), 64),
    ("T=64, B=512 of 4 floats, in 8 rollouts", Load("large", _FLOATS, n_steps=64, n_envs=64, target=""), 512),
    ("T=20, B=32 of 84x84x4 bytes, in 8 rollouts", Load("pixels", _STACKS, n_steps=20, n_envs=4, target=""), 32),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of a trainer's loop."""

    env_steps_per_second: float
    waiting_share: float


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind")
    options = parser.parse_args()

    import torch

    from rollcast.services.wire.allocator import reuse_large_buffers

    reuse_large_buffers()  # as `rollcast train` and `rollcast learner` do
    torch.set_num_threads(1)
    rows = []
    for name, load, batch_size in QUEUED:
        algorithm = _make_impala(load)
        updates: dict[str, Callable[[Batch], object]] = {"queued, a GPU is busy": lambda _: time.sleep(_DEVICE_S)}
        if load.observation is _FLOATS:
            updates["queued, IMPALA on the CPU"] = lambda batch, its=algorithm: its.update(batch, progress=0.0)
        for kind, update in updates.items():

            def queued(is_ahead: bool, its: tuple = (algorithm, load, batch_size, update)) -> Measured:
                with _fed(its[0], its[1], its[2], is_ahead=is_ahead) as actors:
                    return _measure(actors, its[3], options.seconds)

            rows.append((f"{kind}: {name}", *_compare(queued, options.rounds)))
    for batch_size, n_envs in ((8, 4), (128, 64)):

        def played(is_ahead: bool, its: tuple[int, int] = (batch_size, n_envs)) -> Measured:
            return _play(*its, options.seconds, is_ahead=is_ahead)

        name = f"actors, IMPALA on the CPU: CartPole, T=32, B={batch_size}"
        rows.append((name, *_compare(played, options.rounds)))
    header = ("what", "waiting with", "waiting without", "env steps/s with", "without", "ratio (range)")
    print_table(header, rows)


def _compare(measure: Callable[[bool], Measured], n_rounds: int) -> tuple[Figure, ...]:
    """Measures with and without in turns, each first in every second round."""
    measured: dict[bool, list[Measured]] = {True: [], False: []}
    for i in range(n_rounds):
        for is_ahead in (True, False) if i % 2 else (False, True):
            measured[is_ahead].append(measure(is_ahead))
    ahead, without = measured[True], measured[False]
    shares = [[each.waiting_share for each in kind] for kind in (ahead, without)]
    rates = [[each.env_steps_per_second for each in kind] for kind in (ahead, without)]
    return (*(Figure(share, ".1%") for share in shares), *(Figure(rate) for rate in rates), ratio(*rates))


def _measure(actors: "DistributedActors", update: Callable[["Batch"], object], seconds: float) -> Measured:
    for _ in range(3):
        update(actors.collect_outputs("cpu")[0])
    n_steps, waiting_s, began = 0, 0.0, time.perf_counter()
    while (passed_s := time.perf_counter() - began) < seconds:
        batch, _, _, waited_s = actors.collect_outputs("cpu")
        waiting_s += waited_s
        update(batch)
        n_steps += batch.n_env_steps
    return Measured(n_steps / passed_s, waiting_s / passed_s)


def _make_impala(load: Load) -> "Impala":
    import torch

    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings

    return Impala(load.spaces, PolicySpec(), ImpalaSettings(), device=torch.device("cpu"))


@contextmanager
def _fed(algorithm: "Impala", load: Load, batch_size: int, *, is_ahead: bool) -> Iterator["DistributedActors"]:
    """Serves actors in whose queue a thread puts rollouts as soon as there is room."""
    from rollcast.learner.actors.remote import RemoteDistributedActors
    from rollcast.learner.actors.serving_options import ServingOptions

    serving = ServingOptions(addresses=("127.0.0.1:0",), assemble_ahead=is_ahead)
    actors = RemoteDistributedActors(
        algorithm.policy, load.n_steps, batch_size, 2.0, envs_per_actor=load.n_envs, serving=serving
    )
    rollouts = [synthetic_rollout(load, f"synthetic-{i}") for i in range(16)]
    is_over = threading.Event()

    def feed() -> None:
        i = 0
        while actors._queue.put(rollouts[i % len(rollouts)], is_active=lambda: not is_over.is_set()):
            i += 1

    with actors:
        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield actors
        finally:
            is_over.set()
            actors._queue.close()
            feeder.join()


def _play(batch_size: int, n_envs: int, seconds: float, *, is_ahead: bool) -> Measured:
    """Trains with two processes of actors."""
    import torch

    from rollcast.actor.environments.make import EnvironmentFactory
    from rollcast.actor.vector.make import probe_spaces
    from rollcast.learner.actors.serving_options import ServingOptions
    from rollcast.learner.actors.subproc import SubprocDistributedActors
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings

    factory = EnvironmentFactory("CartPole-v1")
    algorithm = Impala(probe_spaces(factory), PolicySpec(), ImpalaSettings(), device=torch.device("cpu"))
    actors = SubprocDistributedActors(
        factory,
        algorithm.policy,
        32,
        2,
        batch_size,
        1.1,
        envs_per_actor=n_envs,
        serving=ServingOptions(assemble_ahead=is_ahead),
    )

    def update(batch: "Batch") -> None:
        algorithm.update(batch, progress=0.0)
        actors.broadcast_updated_policy(algorithm.policy_state())

    with actors:
        return _measure(actors, update, seconds)


if __name__ == "__main__":
    main()
