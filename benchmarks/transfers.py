"""Measures what goes between main memory and a device: batches to it, and policies from it to the publisher.

    python -m benchmarks.transfers [--device cuda] [--seconds 1]

Batches: one buffer of main memory to the device, pageable and pinned, in GB/s. Policies: what the trainer pays to hand
a version over (`policy_state` and `publish`), and the time until that version is encoded, for the Nature CNN and the
IMPALA ResNet. On a CPU there is nothing to copy batches to; the policies are measured.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from benchmarks.pixels import NETWORKS, make_impala, name_of, pixels, wait_for
from benchmarks.table import Figure, print_table
from rollcast.learner.serving.publisher import PolicyPublisher

_SIZES: Final = (2**20, 2**24, 2**28)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a measurement")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {device}: torch finds no CUDA device here")
    torch.set_num_threads(1)
    print(f"To and from {name_of(device)}")
    if device.type == "cuda":
        rows = [
            (
                f"{size / 2**20:,.0f} MiB",
                *(Figure(_rates(size, device, pin, options.seconds), ".1f") for pin in (False, True)),
            )
            for size in _SIZES
        ]
        print_table(("main memory to the device", "pageable GB/s", "pinned GB/s"), rows)
        print()
    rows = [_published(network, device, options.seconds) for network in NETWORKS]
    print_table(("policy", "MB", "trainer ms", "until encoded ms"), rows)
    return 0


def _rates(size: int, device: torch.device, is_pinned: bool, seconds: float) -> list[float]:
    """Returns the GB/s of each copy."""
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=is_pinned)
    target = torch.empty(size, dtype=torch.uint8, device=device)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        wait_for(device)

    return [size / copy_s / 1e9 for copy_s in _times(copy, seconds)]


def _published(network: str, device: torch.device, seconds: float) -> tuple[str | Figure, ...]:
    """Returns a row: the time that a version takes from the trainer, and until it is encoded."""
    load = pixels(n_steps=20, n_envs=8)
    algorithm = make_impala(load, device, network)
    state = algorithm.policy_state()
    n_bytes = sum(array.nbytes for array in state.values())
    trainer: list[float] = []
    encoded: list[float] = []
    publisher = PolicyPublisher(load.spaces, algorithm.policy.spec, seed=0)
    try:
        end = time.perf_counter() + seconds
        while len(encoded) < 3 or time.perf_counter() < end:
            began = time.perf_counter()
            publisher.publish(algorithm.policy_state())
            trainer.append(time.perf_counter() - began)
            publisher.newest()
            encoded.append(time.perf_counter() - began)
    finally:
        publisher.close()
    return (
        network,
        f"{n_bytes / 1e6:.2f}",
        Figure(trainer, ".2f", scale=1e3),
        Figure(encoded, ".2f", scale=1e3),
    )


def _times(work: Callable[[], None], seconds: float) -> list[float]:
    """Returns the seconds of each call."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    raise SystemExit(main())
