"""Chooses the device of a training run from its settings, and how updates compute there."""

import os

import torch

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.devices.graphs import CudaGraph, GraphedWork
from rollcast.learner.devices.precision import UpdateArithmetic, choose_arithmetic, set_tf32
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.services.errors import ConfigurationError


def choose_device(name: str) -> torch.device:
    """Returns the device for a name: `auto`, `cpu` or `cuda`.

    Raises:
        ConfigurationError: The name is `cuda`, and torch finds no CUDA device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("--device: 'cuda', but torch finds no CUDA device here; use --device cpu, or auto")
    return torch.device(name)


def make_arithmetic(settings: LearnerSettings, device: torch.device) -> UpdateArithmetic:
    """Chooses the arithmetic of updates, and sets it for this process where torch knows no smaller scope.

    Raises:
        ConfigurationError: The device does not have the precision.
    """
    arithmetic = choose_arithmetic(
        settings.precision, settings.channels_last, device, deterministic=settings.deterministic
    )
    if device.type == "cuda":
        set_tf32(arithmetic)
    return arithmetic


def capture_updates(settings: LearnerSettings, algorithm: Algorithm, device: torch.device) -> None:
    """Has updates replayed as CUDA graphs, if the settings ask for it. Call it before the first update.

    Raises:
        ConfigurationError: The settings ask for what the device or the algorithm cannot.
    """
    if settings.cuda_graphs == "off":
        return
    why_not = algorithm.why_not_captured()
    if device.type != "cuda":
        why_not = f"the device is {device}, which has no graphs"
    elif settings.deterministic:
        why_not = "no run has shown yet that they give the bits that --deterministic promises"
    if why_not is None:
        algorithm.capture_updates(lambda generators: GraphedWork(lambda: CudaGraph(device, generators)))
    elif settings.cuda_graphs == "on":
        raise ConfigurationError(
            f"--cuda-graphs on: {why_not}; expected a GPU, and updates in which the host decides nothing; choose "
            "--cuda-graphs auto, or off"
        )


def set_torch_threads(n_threads: int, n_local_actors: int) -> None:
    """Sets torch's number of threads; 0 gives it the cores that local actors leave, at least one."""
    torch.set_num_threads(n_threads or max(1, len(os.sched_getaffinity(0)) - n_local_actors))
