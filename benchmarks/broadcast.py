"""Measures the time from publishing a policy until all subscribers have decoded it, beside a bare fan-out of bytes.

    python -m benchmarks.broadcast [--rounds 15]
    python -m benchmarks.broadcast --encodings [--before 30] [--kept 5]

Four processes hold eight subscriptions each, with the client that actors use, to a publisher in this process. The clock
starts before `publish`, so it includes the encoding, and stops for each subscriber when it has the whole state_dict
with its digest checked. In turns with it, a bare server sends the same chunks to as many subscribers in four other
processes, which collect them; its clock starts when the chunks are ready. With --encodings it measures each encoding
of real updates instead, on loopback and through a link of 100 Mbit/s; see `benchmarks.thin_links`.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from typing import Any

import numpy as np

from benchmarks.bare_streams import collect, serve_fan_out
from benchmarks.processes import Processes, in_threads
from benchmarks.table import Figure, print_table, ratio
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.policies import PolicySpec, PolicyState

N_PROCESSES = 4
N_EACH = 8
N_SUBSCRIBERS = N_PROCESSES * N_EACH
_ROUND_TIMEOUT_S = 30.0


def nature_cnn_state() -> PolicyState:
    """Returns a policy for Atari: 84x84x4 in, 512 hidden, 6 actions; 6.75 MB of float32."""
    rng = np.random.default_rng(0)
    shapes = {"0": (32, 4, 8, 8), "1": (64, 32, 4, 4), "2": (64, 64, 3, 3), "3": (512, 3136), "4": (6, 512)}
    state = {f"{layer}.weight": rng.standard_normal(shape, np.float32) for layer, shape in shapes.items()}
    return state | {f"{layer}.bias": rng.standard_normal(shape[0], np.float32) for layer, shape in shapes.items()}


def mlp_state() -> PolicyState:
    """Returns a policy for CartPole: 4, 64, 64, 2; 20 KB of float32."""
    rng = np.random.default_rng(0)
    shapes = {"0": (64, 4), "1": (64, 64), "2": (2, 64)}
    state = {f"{layer}.weight": rng.standard_normal(shape, np.float32) for layer, shape in shapes.items()}
    return state | {f"{layer}.bias": rng.standard_normal(shape[0], np.float32) for layer, shape in shapes.items()}


def subscribers(address: str, arrivals: "Queue[float]") -> None:
    """Process: reports the time when each of its subscriptions has decoded a policy, for ever."""
    from rollcast.services.client.client import LearnerClient
    from rollcast.services.errors import LearnerUnreachableError
    from rollcast.services.wire.allocator import reuse_large_buffers

    reuse_large_buffers()  # as actors do

    def subscribe(client: LearnerClient) -> None:
        while True:
            with contextlib.suppress(LearnerUnreachableError):  # 64 connections at once: an attempt may time out
                for _version, _state in client.subscribe_policy():
                    arrivals.put(time.monotonic())

    in_threads(subscribe, [LearnerClient(address) for _ in range(N_EACH)])


def bare_subscribers(address: str, n_bytes: int, arrivals: "Queue[float]") -> None:
    """Process: reports the time when each of its subscriptions has received `n_bytes`, for ever."""
    from rollcast.services.client.channel import make_channel

    def subscribe(channel: Any) -> None:  # a grpc.Channel
        for arrival in collect(channel, n_bytes):
            arrivals.put(arrival)

    in_threads(subscribe, [make_channel(address) for _ in range(N_EACH)])


def seconds_to_arrive(arrivals: "Queue[float]", published: Callable[[], float]) -> list[float]:
    """Waits for every subscriber; returns their seconds since `published()`, sorted."""
    times = [arrivals.get(timeout=_ROUND_TIMEOUT_S) for _ in range(N_SUBSCRIBERS)]
    return sorted(when - published() for when in times)


def measure(state: PolicyState, rounds: int) -> tuple[list[list[float]], list[list[float]]]:
    """Measures the sorted seconds of all subscribers in each round: of the bare fan-out, and of policies."""
    from rollcast.learner.serving.publisher import PolicyPublisher
    from rollcast.services.server.server import make_server
    from rollcast.services.wire.allocator import reuse_large_buffers

    reuse_large_buffers()  # as `rollcast train` and `rollcast learner` do
    encoded = encode_policy(1, state)
    n_bytes = sum(map(len, encoded.chunks))
    n_bytes -= n_bytes % len(encoded.chunks)
    publisher = PolicyPublisher({}, PolicySpec(), seed=0)
    nobody: Any = None  # no rollouts, no control
    server = make_server(
        "127.0.0.1:0", sink=nobody, source=publisher, control=nobody, limits=Limits(max_actors=N_SUBSCRIBERS)
    )
    server.start()
    processes = Processes()
    orders: Connection
    try:
        receiver, sender = processes.context.Pipe(duplex=False)
        orders_receiver, orders = processes.context.Pipe(duplex=False)
        sent_at = processes.context.Value("d", 0.0)
        arrivals, bare_arrivals = processes.context.Queue(), processes.context.Queue()
        processes.start(serve_fan_out, sender, orders_receiver, sent_at, N_SUBSCRIBERS)
        bare_address = receiver.recv_bytes().decode()
        for _ in range(N_PROCESSES):
            processes.start(bare_subscribers, bare_address, n_bytes, bare_arrivals)
            processes.start(subscribers, server.address, arrivals)

        def fan_out() -> list[float]:
            orders.send_bytes(f"{len(encoded.chunks)} {n_bytes}".encode())
            return seconds_to_arrive(bare_arrivals, lambda: sent_at.value)

        def publish() -> list[float]:
            started = time.monotonic()
            publisher.publish(state)
            return seconds_to_arrive(arrivals, lambda: started)

        fan_out(), publish()  # all have subscribed
        measured = [(fan_out(), publish()) for _ in range(rounds)]
        assert publisher.version == rounds + 1, "a version was left out"
    finally:
        processes.kill()
        server.stop()
    return [bare for bare, _ in measured], [policies for _, policies in measured]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--encodings", action="store_true", help="measure the encodings on a thin link instead")
    parser.add_argument("--before", type=int, default=30, help="with --encodings: updates before the first that counts")
    parser.add_argument("--kept", type=int, default=5, help="with --encodings: consecutive updates that count")
    options = parser.parse_args()
    if options.encodings:
        from benchmarks.thin_links import print_costs

        print_costs(n_before=options.before, n_kept=options.kept)
        return
    rows = []
    for name, state, target in (("Nature CNN", nature_cnn_state(), "1.20"), ("MLP 64x64", mlp_state(), "")):
        n_bytes = encode_policy(1, state).n_bytes
        bare, policies = measure(state, options.rounds)
        rows.append(
            (
                f"{name}, {n_bytes:,} bytes",
                _milliseconds(statistics.median, bare),
                _milliseconds(statistics.median, policies),
                _milliseconds(max, bare),
                _milliseconds(max, policies),
                ratio(map(statistics.median, policies), map(statistics.median, bare)),
                target,
            )
        )
    print(
        f"\n{N_SUBSCRIBERS} subscribers in {N_PROCESSES} processes, {options.rounds} rounds; each version encoded once"
    )
    header = ("policy", "bare p50", "p50", "bare, last", "last", "p50 ratio (rounds)", "target")
    print_table(header, rows)


def _milliseconds(of: Callable[[list[float]], float], rounds: list[list[float]]) -> Figure:
    """Returns a figure of each round in milliseconds."""
    return Figure([of(times) for times in rounds], ".1f", "ms", scale=1e3)


if __name__ == "__main__":
    main()
