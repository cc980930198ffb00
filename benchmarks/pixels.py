"""Learners of pixels for the benchmarks of a device: single frames of 84x84 bytes, which the device stacks by four.

Nothing here imports torch before it is called: processes that only send rollouts import this module, too.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from gymnasium.spaces import Box

from benchmarks.ingest import Load, synthetic_rollout
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.rollouts.rollouts import Rollout

if TYPE_CHECKING:
    import torch

    from rollcast.learner.algorithms.algorithm import Algorithm
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.batch import Batch
    from rollcast.learner.batching.batcher import Batcher

FRAME_STACK: Final = 4
# The networks of the benchmarks by the names of `--network`; None: the one that images get, the Nature CNN.
NETWORKS: Final[dict[str, str | None]] = {"nature": None, "impala_resnet": "impala_resnet"}
# More than the processor's caches hold.
_N_ROLLOUTS: Final = 16


def pixels(*, n_steps: int, n_envs: int) -> Load:
    """Returns rollouts of single frames `[n_steps, n_envs, 84, 84]`."""
    frames = Box(0, 255, (84, 84), np.uint8)
    return Load("pixels", frames, n_steps=n_steps, n_envs=n_envs, target="", frame_stack=FRAME_STACK)


@contextlib.contextmanager
def computing(precision: str, device: "torch.device", *, channels_last: str = "auto") -> Iterator[str]:
    """Has networks compute in a precision, as a learner has them; gives the precision that `auto` chose.

    Raises:
        SystemExit: The device does not have the precision; the reason is printed.
    """
    from rollcast.actor.policies.network_arithmetic import networks_compute
    from rollcast.learner.devices.precision import choose_arithmetic, set_tf32
    from rollcast.services.errors import ConfigurationError

    choice: Any = precision
    order: Any = channels_last
    try:
        arithmetic = choose_arithmetic(choice, order, device)
    except ConfigurationError as error:
        raise SystemExit(str(error)) from error
    if device.type == "cuda":
        set_tf32(arithmetic)
    with networks_compute(arithmetic.networks):
        yield arithmetic.precision


def make_impala(load: Load, device: "torch.device", network: str = "nature") -> "Impala":
    """Makes IMPALA with one torso for policy and critic."""
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings
    from rollcast.services.policies.policies import PolicySpec

    spec = PolicySpec(frame_stack=FRAME_STACK)
    if NETWORKS[network] is not None:
        spec = PolicySpec(frame_stack=FRAME_STACK, network=NETWORKS[network])
    return Impala(load.spaces, spec, ImpalaSettings(share_torso=True), device=device)


def capture_updates(algorithm: "Algorithm", device: "torch.device") -> None:
    """Has the algorithm replay its updates as CUDA graphs, as a learner does.

    Raises:
        SystemExit: The device has no graphs.
    """
    from rollcast.learner.devices.graphs import CudaGraph, GraphedWork

    if device.type != "cuda":
        raise SystemExit(f"--cuda-graphs on: the device is {device}, which has no graphs; choose auto, or off")
    algorithm.capture_updates(lambda generators: GraphedWork(lambda: CudaGraph(device, generators)))


def make_batcher(load: Load, batch_size: int, device: "torch.device") -> "Batcher":
    """Makes what assembles batches for a device."""
    from rollcast.learner.batching.batcher import Batcher
    from rollcast.learner.devices.copier import make_copier

    return Batcher(
        RolloutShape(load.spaces, load.n_steps, frame_stack=load.frame_stack),
        batch_size=batch_size,
        copier=make_copier(device),
    )


def synthetic_rollouts(load: Load) -> Iterator[Rollout]:
    """Yields rollouts without end."""
    return itertools.cycle([synthetic_rollout(load, f"synthetic-{index}") for index in range(_N_ROLLOUTS)])


def fill(batcher: "Batcher", rollouts: Iterator[Rollout]) -> None:
    """Fills a slot with whole rollouts, and a part of the last."""
    from rollcast.learner.queueing.queue import RolloutSlice

    while batcher.n_missing:
        rollout = next(rollouts)
        batcher.add(RolloutSlice(rollout, 0, min(batcher.n_missing, rollout.n_envs)))


def make_batch(load: Load, batch_size: int, device: "torch.device") -> "Batch":
    """Makes one batch on the device."""
    batcher = make_batcher(load, batch_size, device)
    fill(batcher, synthetic_rollouts(load))
    return batcher.finish().ready()


def wait_for(device: "torch.device") -> None:
    """Waits until the device has done what it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: "torch.device") -> str:
    """Returns the device's name."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
