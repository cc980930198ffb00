"""Writes an algorithm's state as named tensors (safetensors) and named values (JSON), without pickle; reads it back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollcast.services.errors import ConfigurationError

TENSORS_FILE = "algorithm.safetensors"
VALUES_FILE = "algorithm.json"


def write_training_state(directory: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Writes tensors and values into a directory.

    Args:
        directory: Made if it does not exist.
        tensors: Tensors by name, on any device. Views that share a storage are written separately.
        values: Values by name; anything JSON can hold.

    Raises:
        OSError: If they cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # safetensors' writer for numpy, because the one for torch refuses tensors that share a storage, and all parameters
    # here are views of one vector. Not np.ascontiguousarray, which turns scalars into vectors.
    arrays = {name: np.asarray(tensor.detach().cpu().numpy(), order="C") for name, tensor in tensors.items()}
    try:
        safetensors.numpy.save_file(arrays, directory / TENSORS_FILE)
    except safetensors.SafetensorError as error:  # raised for a full disk, too
        raise OSError(f"{directory / TENSORS_FILE}: {error}") from error
    (directory / VALUES_FILE).write_text(json.dumps(dict(values), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_training_state(directory: Path) -> tuple[dict[str, NDArray[np.generic]], dict[str, Any]]:
    """Reads what `write_training_state` wrote.

    Args:
        directory: The directory that was written.

    Returns:
        Arrays by name, and values by name.

    Raises:
        ConfigurationError: If a file is missing or cannot be read.
    """
    missing = [name for name in (TENSORS_FILE, VALUES_FILE) if not (directory / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"{directory} is not a checkpoint: {', '.join(missing)} missing; expected a directory that "
            "Algorithm.save wrote. Choose one of RUN_DIR/checkpoints."
        )
    try:
        values = json.loads((directory / VALUES_FILE).read_text(encoding="utf-8"))
        arrays = safetensors.numpy.load_file(directory / TENSORS_FILE)
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise ConfigurationError(f"The checkpoint {directory} cannot be read: {error}. Choose another one.") from error
    return arrays, values


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors as `prefix.name`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def load_module(module: nn.Module, prefix: str, arrays: Mapping[str, NDArray[np.generic]], *, source: Path) -> None:
    """Copies the arrays named `prefix.*` into a module's parameters and buffers, in place.

    Args:
        module: The module, on any device.
        prefix: The prefix of the names, as of `with_prefix`.
        arrays: Arrays by name.
        source: The checkpoint's directory, for messages.

    Raises:
        ConfigurationError: If names or shapes differ from the module's.
    """
    start = f"{prefix}."
    found = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
    expected = module.state_dict()
    if found.keys() != expected.keys():
        raise ConfigurationError(
            f"The {prefix} in {source} holds {sorted(found)}; expected {sorted(expected)}. "
            "Resume with the spaces, the network and the algorithm of that run."
        )
    for name, tensor in expected.items():
        if tuple(tensor.shape) != found[name].shape:
            raise ConfigurationError(
                f"{start}{name} in {source} has shape {list(found[name].shape)}; expected {list(tensor.shape)}. "
                "Resume with the spaces and the network of that run."
            )
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(torch.from_numpy(found[name]))


def take_critics(checkpoint: Path | None, algorithm: str, critics: Mapping[str, nn.Module]) -> bool:
    """Loads critics from another run's checkpoint, if that run had the same algorithm.

    Args:
        checkpoint: The directory that the other algorithm's `save` wrote; None: there is none.
        algorithm: The algorithm's name, as `save` writes it.
        critics: The modules by their prefix, as of `with_prefix`.

    Returns:
        True if they were loaded.

    Raises:
        ConfigurationError: If the checkpoint has other networks.
    """
    if checkpoint is None:
        return False
    arrays, values = read_training_state(checkpoint)
    if values.get("algorithm") != algorithm:
        return False
    for prefix, module in critics.items():
        load_module(module, prefix, arrays, source=checkpoint)
    return True


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Returns the state of an optimiser that has one parameter, by name."""
    state = optimizer.state_dict()["state"].get(0, {})
    return {name: torch.as_tensor(value) for name, value in state.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Restores the state of an optimiser that has one parameter, but not its settings.

    Args:
        optimizer: An optimiser of the kind that was saved.
        prefix: The prefix of the names, as of `with_prefix`. Without such an array, the optimiser had made no step.
        arrays: Arrays by name.
    """
    start = f"{prefix}."
    state = {
        name.removeprefix(start): torch.from_numpy(array.copy())
        for name, array in arrays.items()
        if name.startswith(start)
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})
