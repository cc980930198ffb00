"""Measures the cost of TLS with tokens, and of digests, for ingest, beside bare gRPC streams with and without TLS.

    python -m benchmarks.ingest_costs [--seconds 1.5] [--rounds 7] [--only "1 MiB"]

It runs `benchmarks.ingest` in five variants, in turns in one run: bare streams of bytes, plain and with mutual TLS; and
rollouts on their way into the batch slot, plain, without digests, and with mutual TLS and tokens. The cost of TLS for
the bare stream is gRPC's; any further cost for rollouts would be ours.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import c_bool, c_longlong
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

from benchmarks.bare_streams import serve_uploads, upload
from benchmarks.ingest import (
    LOADS,
    N_ACTORS,
    SETTLE_S,
    Learner,
    Load,
    rollout_bytes,
    synthetic_actor,
    synthetic_rollout,
)
from benchmarks.table import Figure, print_table, ratio
from rollcast.services.rollouts.codec import MAX_FRAME_BYTES
from rollcast.services.security.security import PLAIN_CLIENT, PLAIN_SERVER, ClientSecurity, ServerSecurity
from rollcast.tools.certificates import make_certificates

BARE, BARE_TLS, PLAIN, NO_DIGESTS, TLS = "bare", "bare, TLS", "plain", "plain, no digests", "TLS, tokens"
COMPARISONS = (
    ("TLS, of the bare stream", BARE_TLS, BARE, ""),
    ("TLS and tokens, of rollouts", TLS, PLAIN, "85%"),
    ("digests, of rollouts", PLAIN, NO_DIGESTS, ""),
)

# Maps seconds to the bytes per second received in them.
Rate = Callable[[float], float]


def make_security(keys: Path) -> tuple[ServerSecurity, ClientSecurity]:
    """Development keys, and both sides of mutual TLS with tokens."""
    make_certificates(keys)
    server = ServerSecurity.from_files(
        tls_cert=keys / "server.pem",
        tls_key=keys / "server.key",
        tls_client_ca=keys / "ca.pem",
        tokens_file=keys / "tokens",
    )
    client = ClientSecurity(
        tls_ca=keys / "ca.pem",
        tls_cert=keys / "actor.pem",
        tls_key=keys / "actor.key",
        token_file=keys / "actor.token",
    )
    return server, client


def rate_while(sending: Any, receive: Callable[[float], int]) -> Rate:
    """Measures the bytes that arrive while `sending` is set."""

    def rate(seconds: float) -> float:
        sending.value = True
        receive(SETTLE_S)
        started = time.perf_counter()
        n_received = receive(seconds)
        elapsed = time.perf_counter() - started
        sending.value = False
        receive(SETTLE_S)
        return n_received / elapsed

    return rate


@contextmanager
def started(context: SpawnContext, target: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Runs a process and kills it at the end."""
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def bare(context: SpawnContext, stack: ExitStack, n_bytes: int, server: ServerSecurity, client: ClientSecurity) -> Rate:
    """Runs a bare stream of messages of this size from each actor."""
    received, sending = context.Value(c_longlong, 0), context.Value(c_bool, False, lock=False)
    receiver, sender = context.Pipe(duplex=False)
    stack.enter_context(started(context, serve_uploads, sender, received, N_ACTORS, server.tls))
    address = receiver.recv_bytes().decode()
    for _ in range(N_ACTORS):
        stack.enter_context(started(context, upload, address, bytes(n_bytes), sending, client))

    def count(seconds: float) -> int:
        before = received.value
        time.sleep(seconds)
        return int(received.value - before)

    return rate_while(sending, count)


def rollouts(
    context: SpawnContext,
    stack: ExitStack,
    load: Load,
    server: ServerSecurity,
    client: ClientSecurity,
    *,
    has_digests: bool = True,
) -> Rate:
    """Runs a learner and actors that send rollouts."""
    n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0"))
    learner, sending = Learner(load, server), context.Value(c_bool, False, lock=False)
    stack.callback(learner.close)
    for index in range(N_ACTORS):
        arguments = (index, load, learner.address, sending, client, has_digests)
        stack.enter_context(started(context, synthetic_actor, *arguments))
    learner.wait_for_actors()
    return rate_while(sending, lambda seconds: learner.consume(seconds) * n_bytes // load.n_envs)


def measure(load: Load, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measures rounds of each, in bytes per second."""
    context = multiprocessing.get_context("spawn")
    n_bytes = min(rollout_bytes(synthetic_rollout(load, "synthetic-0")), MAX_FRAME_BYTES)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollcast-certs-"))
        secured = make_security(Path(folder))
        plain = (PLAIN_SERVER, PLAIN_CLIENT)
        rates = {
            BARE: bare(context, stack, n_bytes, *plain),
            BARE_TLS: bare(context, stack, n_bytes, *secured),
            PLAIN: rollouts(context, stack, load, *plain),
            NO_DIGESTS: rollouts(context, stack, load, *plain, has_digests=False),
            TLS: rollouts(context, stack, load, *secured),
        }
        measured = [{name: rate(seconds) for name, rate in rates.items()} for _ in range(rounds + 1)]
        return {name: [found[name] for found in measured[1:]] for name in rates}


def rows(load: Load, measured: dict[str, list[float]]) -> Iterator[Sequence[str | Figure]]:
    """Returns a row for each comparison."""
    for what, name, beside, target in COMPARISONS:
        yield (
            load.name,
            what,
            *(Figure(measured[one], ",.0f", "MB/s", scale=1e-6) for one in (beside, name)),
            ratio(measured[name], measured[beside], ".0%"),
            target,
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are printed")
    parser.add_argument("--only", help="measure only loads whose name contains this")
    options = parser.parse_args()
    found: list[Sequence[str | Figure]] = []
    for load in LOADS:
        if not options.only or options.only in load.name:
            found += rows(load, measure(load, options.rounds, options.seconds))
    print(f"\n{N_ACTORS} synthetic actors, {options.rounds} rounds of {options.seconds} s; median of ratios a round")
    print_table(("rollout", "what it costs", "without", "with", "ratio (rounds)", "target"), found)


if __name__ == "__main__":
    main()
