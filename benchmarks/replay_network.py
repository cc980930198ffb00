"""Measures a replay buffer over the network, beside bare gRPC byte streams.

    python -m benchmarks.replay_network [--seconds 1.5] [--rounds 7] [--only 84x84x4]

`rollcast replay serve` runs as a user starts it. The two synthetic actors of `benchmarks.ingest` fill it over the
connection that actors use; a transition counts when the buffer reports it as inserted. A `ReplayClient` in its own
process draws batches of 256; a transition counts when the client has its batch. A bare stream of bytes takes turns with
each, with messages of the same sizes, the same allocator and, for uploads, the same window.
"""

import argparse
import contextlib
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import c_bool, c_longlong
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box

from benchmarks.bare_streams import download, serve_downloads, serve_uploads, upload
from benchmarks.ingest import FOUR_FLOATS, N_ACTORS, PIXELS, Load, rollout_bytes, synthetic_actor, synthetic_rollout
from benchmarks.table import Figure, print_table, ratio
from rollcast.services.client.channel import make_channel
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import LearnerUnreachableError, ProtocolMismatchError
from rollcast.services.limits.limits import MAX_FRAME_BYTES
from rollcast.services.wire.allocator import reuse_large_buffers
from rollcast.v1 import replay_pb2

BATCH_SIZE = 256
_SETTLE_S = 0.3
_START_S = 60.0

# Returns whether it goes on, and the bytes so far.
_Side: TypeAlias = tuple[Any, Callable[[], float]]


@dataclass(frozen=True)
class Experience:
    """The experience to insert and to draw.

    Attributes:
        load: The rollouts; its `target` is the one for sampling.
        capacity: Capacity of the buffer in transitions.
        insert_target: The target for inserting; None: inserting is not measured.
    """

    load: Load
    capacity: int
    insert_target: str | None = None


EXPERIENCES = (
    Experience(
        Load("4 floats", FOUR_FLOATS, n_steps=32, n_envs=58, target="70%; 470k/s"),
        capacity=1_000_000,
        insert_target="70%; 100k/s",
    ),
    Experience(
        Load("376 floats", Box(-10, 10, (376,), np.float32), n_steps=32, n_envs=8, target="70%"), capacity=200_000
    ),
    Experience(
        Load("84x84x4 uint8", PIXELS, n_steps=20, n_envs=4, target="70%; 28.5k images/s"),
        capacity=20_000,
        insert_target="70%",
    ),
)


@dataclass(frozen=True)
class Measured:
    """A measurement.

    Attributes:
        name: Its name.
        item_bytes: Bytes of a transition on the wire.
        rounds: Bytes per second of the bare stream and of ours in each round.
        images: Images in a transition: 1 when inserted, 2 when drawn with the next observation; 0: no images.
        target: The target, as text.
    """

    name: str
    item_bytes: float
    rounds: list[tuple[float, float]]
    images: int
    target: str


def sample(address: str, receiving: "Synchronized[bool]", received: "Synchronized[int]") -> None:
    """Process: draws and counts batches while `receiving` is set, for ever."""
    reuse_large_buffers()  # as a learner does
    with ReplayClient(address) as client:
        for _batch in client.samples(BATCH_SIZE):
            received.value += 1
            while not receiving.value:
                time.sleep(0.001)


@contextlib.contextmanager
def served_buffer(experience: Experience) -> Iterator[str]:
    """Runs `rollcast replay serve` with an empty buffer and the spaces of the first actor.

    Yields:
        Its address.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "rollcast.learner", "replay", "serve", "--address", address]
    command += ["--spaces-from", "first_actor", "--n-rollout-steps", str(experience.load.n_steps)]
    command += ["--replay.capacity", str(experience.capacity), "--log-level", "ERROR"]
    server = subprocess.Popen(command)
    try:
        yield address
    finally:
        server.kill()
        server.wait()


def message_sizes(address: str) -> list[int]:
    """Returns the bytes of each message of a batch for `ReplayClient`."""
    with make_channel(address) as channel:
        call: Any = channel.unary_stream(
            "/rollcast.v1.ReplayService/Sample", request_serializer=replay_pb2.SampleRequest.SerializeToString
        )
        request = replay_pb2.SampleRequest(batch_size=BATCH_SIZE, n_batches=1, timeout_s=10.0, may_defer=True)
        return [len(message) for message in call(request)]


def measure(experience: Experience, rounds: int, seconds: float) -> Iterator[Measured]:
    """Measures inserting, if wanted, and then sampling from the filled buffer."""
    load = experience.load
    n_bytes, n_transitions = rollout_bytes(synthetic_rollout(load, "synthetic-0")), load.n_steps * load.n_envs
    has_images = load.observation is PIXELS
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []

    def start(target: Callable[..., None], *args: object) -> None:
        processes.append(context.Process(target=target, args=args, daemon=True))
        processes[-1].start()

    def start_server(target: Callable[..., None], *args: object) -> str:
        receiver, sender = context.Pipe(duplex=False)
        start(target, sender, *args)
        return receiver.recv_bytes().decode()

    def turns(
        bare: tuple[Any, Callable[[], float]], ours: tuple[Any, Callable[[], float]]
    ) -> list[tuple[float, float]]:
        """Measures rounds of both in bytes per second; the first round is discarded."""
        return [(_rate(*bare, seconds), _rate(*ours, seconds)) for _ in range(rounds + 1)][1:]

    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served_buffer(experience))
        client = stack.enter_context(ReplayClient(address))
        stack.callback(_kill, processes)
        playing, uploading, sampling, downloading = (context.Value(c_bool, False, lock=False) for _ in range(4))
        uploaded, sampled, downloaded = (
            context.Value(c_longlong, 0),
            *(context.Value(c_longlong, 0, lock=False) for _ in range(2)),
        )
        _wait(lambda: _answers(client), "rollcast replay serve to answer")
        for index in range(N_ACTORS):
            start(synthetic_actor, index, load, address, playing)
        playing.value = True
        _wait(lambda: _inserted(client) >= 3 * experience.capacity // 2, "the buffer to be full")
        playing.value = False
        if experience.insert_target is not None:
            bare_address = start_server(serve_uploads, uploaded, N_ACTORS)
            for _ in range(N_ACTORS):
                start(upload, bare_address, bytes(min(n_bytes, MAX_FRAME_BYTES)), uploading)
            measured = turns(
                (uploading, lambda: uploaded.value),
                (playing, lambda: client.info().inserted * n_bytes / n_transitions),
            )
            name = f"insert {load.name}, rollouts of {n_bytes / 1024:,.0f} KiB"
            yield Measured(name, n_bytes / n_transitions, measured, int(has_images), experience.insert_target)
        sizes = message_sizes(address)
        start(download, start_server(serve_downloads, sizes), downloading, downloaded)
        start(sample, address, sampling, sampled)
        measured = turns(
            (downloading, lambda: downloaded.value),
            (sampling, lambda: sampled.value * sum(sizes)),
        )
        name = f"sample {load.name}, {len(sizes)} x {max(sizes) / 1024:,.0f} KiB"
        yield Measured(name, sum(sizes) / BATCH_SIZE, measured, 2 * has_images, load.target)


def _answers(client: ReplayClient) -> bool:
    """Returns True if a server answers; before the first actor joins there is no buffer."""
    try:
        client.info()
    except ProtocolMismatchError:
        return True
    except LearnerUnreachableError:
        return False
    return True


def _inserted(client: ReplayClient) -> int:
    with contextlib.suppress(ProtocolMismatchError, LearnerUnreachableError):
        return client.info().inserted
    return 0


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {_START_S:.0f} s: {what}"
        time.sleep(0.05)


def _rate(going: Any, total: Callable[[], float], seconds: float) -> float:
    going.value = True
    time.sleep(_SETTLE_S)
    before, started = total(), time.perf_counter()
    time.sleep(seconds)
    rate = (total() - before) / (time.perf_counter() - started)
    going.value = False
    time.sleep(_SETTLE_S)
    return rate


def _kill(processes: list[Any]) -> None:
    for process in reversed(processes):  # clients first, or they log errors
        process.kill()
        process.join()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are printed")
    parser.add_argument("--only", help="measure only cases whose name contains this")
    options = parser.parse_args()
    rows = []
    for experience in EXPERIENCES:
        if options.only and options.only not in experience.load.name:
            continue
        for measured in measure(experience, options.rounds, options.seconds):
            bare, ours = zip(*measured.rounds, strict=True)
            items = 1 / measured.item_bytes
            rows.append(
                (
                    measured.name,
                    Figure(ours, scale=items),
                    Figure(ours, scale=items * measured.images) if measured.images else "",
                    *(Figure(rates, ",.0f", "MB/s", scale=1e-6) for rates in (ours, bare)),
                    ratio(ours, bare, ".0%"),
                    measured.target,
                )
            )
    print(f"\nThrough the network, {options.rounds} rounds of {options.seconds} s; median of ratios a round. A sampled")
    print("transition has two images, the observation and the next one; an inserted one has one")
    header = ("what", "transitions/s", "images/s", "ours", "bare stream", "ratio (rounds)", "target")
    print_table(header, rows)


if __name__ == "__main__":
    main()
