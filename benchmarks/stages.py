"""Measures a learner of pixels stage by stage, and all stages together, in frames per second.

    python -m benchmarks.stages [--device cuda] [--precision bf16] [--cuda-graphs off] [--batch-size 32] [--n-feeders 2]

Processes feed synthetic rollouts of single frames, 84x84 bytes each, without stepping an environment, over the
connection that actors use. IMPALA learns from them with the Nature CNN, which sees stacks of 4 frames that are made on
the learner's device. The stages, each alone:

    ingest    rollouts of the feeders, checked and taken from the queue; nothing is done with them
    assemble  rollouts in memory, copied into a batch slot
    copy      a full slot, to the device; on the CPU a batch is a view of its slot
    update    `Impala.update` of a batch on the device: stacks, networks, V-trace, optimiser
    publish   the trainer's share of handing a version to the publisher, one for each update

Then the loop of the trainer runs with all of them, and its time is shared out to waiting, updating and publishing. An
update on a GPU is timed by the device's own clock: the share of the device is the time between the first and the last
kernel of updates.
"""

import argparse
import contextlib
import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator
from ctypes import c_bool
from typing import TYPE_CHECKING, Any, Final

from benchmarks.ingest import Load, synthetic_actor
from benchmarks.pixels import (
    FRAME_STACK,
    capture_updates,
    computing,
    fill,
    make_batcher,
    make_impala,
    name_of,
    pixels,
    synthetic_rollouts,
    wait_for,
)
from benchmarks.table import Figure, print_table
from rollcast.services.rollouts.rollouts import Rollout

if TYPE_CHECKING:
    import torch

    from rollcast.learner.actors.remote import RemoteDistributedActors
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.batch import Batch
    from rollcast.learner.batching.batcher import Batcher

# On one H100, with the device busy for 80 % of the time.
GOAL: Final = "200k frames/s, 80 % (H100)"
_START_TIMEOUT_S: Final = 60.0
_WARM_UPDATES: Final = 5


@dataclasses.dataclass(slots=True)
class Shares:
    """Seconds of a loop, by what they were spent on; `device_s` by the device's own clock."""

    frames: int = 0
    wall_s: float = 0.0
    waiting_s: float = 0.0
    updating_s: float = 0.0
    publishing_s: float = 0.0
    device_s: float = 0.0


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of a measurement")
    parser.add_argument("--n-steps", type=int, default=20, help="T, steps of a rollout")
    parser.add_argument("--batch-size", type=int, default=32, help="B, trajectories of a batch")
    parser.add_argument("--n-feeders", type=int, default=2, help="processes that send rollouts")
    parser.add_argument("--precision", choices=("auto", "fp32", "tf32", "bf16"), default="auto")
    parser.add_argument("--channels-last", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--cuda-graphs", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    options = parser.parse_args()

    import torch

    from rollcast.services.wire.allocator import reuse_large_buffers

    reuse_large_buffers()  # as `rollcast train` and `rollcast learner` do
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {device}: torch finds no CUDA device here")
    options.replays = options.cuda_graphs == "on" or (options.cuda_graphs == "auto" and device.type == "cuda")
    with computing(options.precision, device, channels_last=options.channels_last) as options.precision:
        _measure(options, device)


def _measure(options: argparse.Namespace, device: "torch.device") -> None:
    # Two rollouts make a batch, so that the feeders need few messages for many frames.
    load = pixels(n_steps=options.n_steps, n_envs=max(1, options.batch_size // 2))
    algorithm = make_impala(load, device)
    if options.replays:
        capture_updates(algorithm, device)
    with _fed(load, algorithm, options.batch_size, options.n_feeders) as (actors, sending):
        batcher = make_batcher(load, options.batch_size, device)
        rollouts = synthetic_rollouts(load)
        fill(batcher, rollouts)
        batch = batcher.finish().ready()
        for _ in range(_WARM_UPDATES):
            algorithm.update(batch, progress=0.0)
        n_frames = batch.n_env_steps
        sending.value = True
        ingest = _rate(lambda: _take(actors, options.batch_size) * load.n_steps, options.seconds)
        sending.value = False
        _drain(actors, options.batch_size)
        others = make_batcher(load, options.batch_size, device)  # the batch above keeps its slot
        assemble, copy = _assembling(others, rollouts, device, options.seconds)
        update = _rate(lambda: _update(algorithm, batch), options.seconds, device)
        publish = _rate(lambda: _publish(actors, algorithm) * n_frames, options.seconds)
        sending.value = True
        together = _together(actors, algorithm, device, options.seconds)
        sending.value = False
    _print(options, load, device, (ingest, assemble, copy, update, publish), n_frames, together)


def _print(
    options: argparse.Namespace,
    load: Load,
    device: "torch.device",
    stages: tuple[float, float, float | None, float, float],
    n_frames: int,
    together: Shares,
) -> None:
    print(
        f"\nIMPALA, Nature CNN with one torso, {FRAME_STACK} single frames stacked on {name_of(device)}, "
        f"{options.precision}, {'with' if options.replays else 'without'} CUDA graphs, "
        f"T={load.n_steps}, B={options.batch_size}, {options.n_feeders} feeders, {options.threads} torch threads"
    )
    names = ("ingest", "assemble", "copy", "update", "publish")
    rows = [
        (name, "a view", "", "")
        if rate is None
        else (name, Figure([rate]), Figure([n_frames / rate], ".2f", scale=1e3), "")
        for name, rate in zip(names, stages, strict=True)
    ]
    rate = together.frames / together.wall_s
    rows.append(("all together", Figure([rate]), Figure([n_frames / rate], ".2f", scale=1e3), GOAL))
    print_table(("stage", "frames/s", "ms a batch", "goal"), rows)
    print("\nThe trainer's time with all of them:")
    shares = {
        "waits for a batch": together.waiting_s,
        "updates": together.updating_s,
        "publishes": together.publishing_s,
    }
    if device.type == "cuda":
        shares["the device is busy with updates"] = together.device_s
    print_table(
        ("the trainer", "share"),
        [(name, Figure([spent_s / together.wall_s], ".0%")) for name, spent_s in shares.items()],
    )


@contextlib.contextmanager
def _fed(
    load: Load, algorithm: "Impala", batch_size: int, n_feeders: int
) -> Iterator[tuple["RemoteDistributedActors", Any]]:
    """Serves the feeders, which send while the flag is set; ends them."""
    from rollcast.learner.actors.remote import RemoteDistributedActors
    from rollcast.learner.actors.serving_options import ServingOptions

    context = multiprocessing.get_context("spawn")
    sending = context.Value(c_bool, False, lock=False)
    serving = ServingOptions(addresses=("127.0.0.1:0",), max_actors=n_feeders)
    actors = RemoteDistributedActors(
        algorithm.policy, load.n_steps, batch_size, 2.0, envs_per_actor=load.n_envs, serving=serving
    )
    with actors:
        (address,) = actors.addresses
        feeders = [
            context.Process(target=synthetic_actor, args=(index, load, address, sending), daemon=True)
            for index in range(n_feeders)
        ]
        try:
            for feeder in feeders:
                feeder.start()
            deadline = time.monotonic() + _START_TIMEOUT_S
            while actors.n_actors_alive < n_feeders:
                assert time.monotonic() < deadline, "the feeders did not come"
                time.sleep(0.05)
            yield actors, sending
        finally:
            for feeder in feeders:
                feeder.kill()
                feeder.join()


def _take(actors: "RemoteDistributedActors", n: int) -> int:
    return actors.next_slice(n).n_trajectories


def _drain(actors: "RemoteDistributedActors", n: int) -> None:
    """Takes what is left of the feeders, which have stopped."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < 0.3:
        if actors.poll_slice(n) is not None:
            quiet_since = time.monotonic()
        else:
            time.sleep(0.01)


def _assembling(
    batcher: "Batcher", rollouts: Iterator[Rollout], device: "torch.device", seconds: float
) -> tuple[float, float | None]:
    """Returns the frames per second of filling slots, and of copying them; None: nothing is copied."""
    filling_s = copying_s = 0.0
    n_frames = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        fill(batcher, rollouts)
        filled = time.perf_counter()
        batch = batcher.finish().ready()
        wait_for(device)
        filling_s += filled - began
        copying_s += time.perf_counter() - filled
        n_frames += batch.n_env_steps
    return n_frames / filling_s, None if device.type == "cpu" else n_frames / copying_s


def _update(algorithm: "Impala", batch: "Batch") -> int:
    algorithm.update(batch, progress=0.0)
    return batch.n_env_steps


def _publish(actors: "RemoteDistributedActors", algorithm: "Impala") -> int:
    actors.broadcast_updated_policy(algorithm.policy_state())
    return 1


def _rate(work: Callable[[], int], seconds: float, device: "torch.device | None" = None) -> float:
    """Returns the frames per second of work that returns its frames."""
    n_frames = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        n_frames += work()
    if device is not None:
        wait_for(device)
    return n_frames / (time.perf_counter() - began)


def _together(actors: "RemoteDistributedActors", algorithm: "Impala", device: "torch.device", seconds: float) -> Shares:
    """Runs the trainer's loop: collect, update, publish."""
    import torch

    shares, name = Shares(), str(device)
    events = []
    actors.collect_outputs(name)  # the pipeline is full from here on
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        started = time.perf_counter()
        batch, *_ = actors.collect_outputs(name)
        collected = time.perf_counter()
        if device.type == "cuda":
            events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])  # type: ignore[no-untyped-call]
            events[-1][0].record()
        algorithm.update(batch, progress=0.0)
        if device.type == "cuda":
            events[-1][1].record()
        updated = time.perf_counter()
        actors.broadcast_updated_policy(algorithm.policy_state())
        shares.waiting_s += collected - started
        shares.updating_s += updated - collected
        shares.publishing_s += time.perf_counter() - updated
        shares.frames += batch.n_env_steps
    wait_for(device)
    shares.wall_s = time.perf_counter() - began
    shares.device_s = sum(first.elapsed_time(last) for first, last in events) / 1e3
    return shares


if __name__ == "__main__":
    main()
