"""Measures updates of IMPALA from pixels on a device: by network, precision, batch size, with and without graphs.

    python -m benchmarks.updates [--device cuda] [--networks nature impala_resnet] [--precisions tf32 bf16]
                                 [--batch-sizes 32 128 512 1024] [--n-steps 20] [--seconds 1]

Batches lie on the device before: nothing but `Impala.update` is measured, by the wall clock around many updates and one
wait for the device at their end. Kernels and their time are those of torch's profiler, for a few updates afterwards:
`busy` is the time of kernels in a second of updates. Each row is printed once it is there, and a row that fails says
why and leaves the others. On a CPU there are neither graphs nor kernels, and precisions are fp32 and bf16.
"""

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from benchmarks.pixels import NETWORKS, computing, make_batch, make_impala, name_of, pixels, wait_for
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.batch import Batch
from rollcast.learner.devices.graphs import CudaGraph, GraphedWork

# The updates before the measurement: those that warm a graph up, its capture, and one replay.
_WARM_UPDATES: Final = 6
_PROFILED_UPDATES: Final = 3
_HEADER: Final = (
    *("network", "precision", "B", "updates", "frames/s", "ms", "replayed", "kernels", "busy"),
    *("allocated MiB", "reserved MiB"),
)


class CountedGraph(CudaGraph):
    """A CUDA graph that counts its replays.

    Attributes:
        n_replays: The replays of all graphs.
    """

    n_replays = 0

    def replay(self) -> None:
        """Launches the graph."""
        CountedGraph.n_replays += 1
        super().replay()


@dataclass(frozen=True, slots=True)
class Row:
    """The choices of a row.

    Attributes:
        network: A name in `NETWORKS`.
        precision: A value of `--precision`.
        batch_size: B, trajectories of a batch.
        is_replayed: True: updates are replayed as CUDA graphs.
    """

    network: str
    precision: str
    batch_size: int
    is_replayed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a row failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a row")
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=tuple(NETWORKS))
    parser.add_argument(
        "--precisions", nargs="+", default=None, help="fp32, tf32, bf16; default: all but fp32 on a GPU"
    )
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=(32, 128, 512, 1024), help="trajectories")
    parser.add_argument("--n-steps", type=int, default=20, help="T, steps of a trajectory")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    is_cuda = device.type == "cuda"
    if is_cuda and not torch.cuda.is_available():
        parser.error(f"--device {device}: torch finds no CUDA device here")
    torch.set_num_threads(1)
    precisions = options.precisions or (("tf32", "bf16") if is_cuda else ("fp32", "bf16"))
    print(f"IMPALA from pixels on {name_of(device)}, T={options.n_steps}, one thread of torch")
    print(f"| {' | '.join(_HEADER)} |\n|{'---|' * len(_HEADER)}", flush=True)
    failures = 0
    for network in options.networks:
        for precision in precisions:
            for batch_size in options.batch_sizes:
                for is_replayed in (False, True) if is_cuda else (False,):
                    row = Row(network, precision, batch_size, is_replayed)
                    failures += not _print_row(row, device, options.n_steps, options.seconds)
    return int(failures > 0)


def _print_row(row: Row, device: torch.device, n_steps: int, seconds: float) -> bool:
    """Measures and prints a row; returns whether it succeeded."""
    what = (row.network, row.precision, f"{row.batch_size:,}", "graph" if row.is_replayed else "eager")
    try:
        cells = _measure(row, device, n_steps, seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, for instance out of memory: the other rows are wanted
        reason = str(error).partition("\n")[0]
        print(f"| {' | '.join(what)} | failed: {type(error).__name__}: {reason} |", flush=True)
        return False
    finally:
        if device.type == "cuda":
            gc.collect()  # what the row has made may refer to itself
            torch.cuda.empty_cache()
    print(f"| {' | '.join((*what, *cells))} |", flush=True)
    return True


def _measure(row: Row, device: torch.device, n_steps: int, seconds: float) -> tuple[str, ...]:
    """Returns the cells of a row from frames/s on."""
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    with computing(row.precision, device):
        load = pixels(n_steps=n_steps, n_envs=max(1, row.batch_size // 2))
        batch = make_batch(load, row.batch_size, device)
        algorithm = make_impala(load, device, row.network)
        if row.is_replayed:
            algorithm.capture_updates(lambda generators: GraphedWork(lambda: CountedGraph(device, generators)))
        for _ in range(_WARM_UPDATES):
            algorithm.update(batch, progress=0.0)
        wait_for(device)
        replays, n_updates, began = CountedGraph.n_replays, 0, time.perf_counter()
        while n_updates < 3 or time.perf_counter() - began < seconds:
            algorithm.update(batch, progress=0.0)
            n_updates += 1
        wait_for(device)
        update_s = (time.perf_counter() - began) / n_updates
        replays = CountedGraph.n_replays - replays
        n_kernels, kernels_s = _kernels(algorithm, batch) if is_cuda else (None, None)
    return (
        f"{batch.n_env_steps / update_s:,.0f}",
        f"{1e3 * update_s:.2f}",
        f"{replays} of {n_updates}",
        "-" if n_kernels is None else f"{n_kernels:.0f}",
        "-" if kernels_s is None else f"{kernels_s / update_s:.0%}",
        f"{torch.cuda.max_memory_allocated(device) / 2**20:,.0f}" if is_cuda else "-",
        f"{torch.cuda.max_memory_reserved(device) / 2**20:,.0f}" if is_cuda else "-",
    )


def _kernels(algorithm: Impala, batch: Batch) -> tuple[float, float]:
    """Returns the kernels of an update, and the seconds that they take."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_PROFILED_UPDATES):
            algorithm.update(batch, progress=0.0)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    seconds = sum(event.device_time_total for event in kernels) / 1e6
    return len(kernels) / _PROFILED_UPDATES, seconds / _PROFILED_UPDATES


if __name__ == "__main__":
    raise SystemExit(main())
