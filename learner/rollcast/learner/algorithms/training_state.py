"""Writes and reads an algorithm's state as named tensors (safetensors) and named values (JSON), without pickle.

`write_parts` and `load_parts` handle modules, optimisers, tensors and generators by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollcast.learner.algorithms.descent import Descent, FlatParameters
from rollcast.learner.devices.generators import restore_generator
from rollcast.services.errors import ConfigurationError

TENSORS_FILE = "algorithm.safetensors"
VALUES_FILE = "algorithm.json"

# A part of an algorithm's state on which its next update depends.
StatePart: TypeAlias = nn.Module | torch.optim.Optimizer | Descent | Tensor | torch.Generator

_STATE: Final = "state"


def write_training_state(directory: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Writes tensors and values into a directory.

    Args:
        directory: Created if missing.
        tensors: Tensors by name, on any device. Views that share a storage are written separately.
        values: JSON values by name.

    Raises:
        OSError: If a file cannot be written.
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
    """Reads the files of `write_training_state`.

    Args:
        directory: The directory.

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


def write_parts(directory: Path, parts: Mapping[str, StatePart], values: Mapping[str, Any]) -> None:
    """Writes parts of an algorithm and values into a directory.

    Args:
        directory: Created if missing.
        parts: The parts by name.
        values: JSON values by name.

    Raises:
        OSError: If a file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            tensors[name] = part
        elif isinstance(part, torch.Generator):
            tensors[name] = part.get_state()
        else:
            state = part.state_dict() if isinstance(part, nn.Module) else _optimizer_tensors(*_with_layout(part))
            tensors |= {f"{name}.{key}": tensor for key, tensor in state.items()}
    write_training_state(directory, tensors, values)


def load_parts(parts: Mapping[str, StatePart], arrays: Mapping[str, NDArray[np.generic]], *, source: Path) -> None:
    """Loads parts from `write_parts`, in place, on any device.

    A generator whose state comes from another kind of device draws other numbers; see `restore_generator`.

    Args:
        parts: The parts by name, of the same shapes.
        arrays: Arrays by name.
        source: The checkpoint's directory, for messages.

    Raises:
        ConfigurationError: If a part is missing, or belongs to other networks or optimisers.
    """
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            load_module(part, name, arrays, source=source)
        elif isinstance(part, torch.optim.Optimizer | Descent):
            _load_optimizer(*_with_layout(part), name, arrays, source)
        elif isinstance(part, Tensor):
            _load_tensor(part, name, arrays, source)
        else:
            _load_generator(part, name, arrays, source)


def load_module(module: nn.Module, prefix: str, arrays: Mapping[str, NDArray[np.generic]], *, source: Path) -> None:
    """Copies the arrays named `prefix.*` into a module's parameters and buffers, in place.

    Args:
        module: The module, on any device.
        prefix: The prefix of the names.
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


def _with_layout(part: torch.optim.Optimizer | Descent) -> tuple[torch.optim.Optimizer, FlatParameters | None]:
    return (part.optimizer, part.parameters) if isinstance(part, Descent) else (part, None)


def _optimizer_tensors(optimizer: torch.optim.Optimizer, flat: FlatParameters | None) -> dict[str, Tensor]:
    """Returns the state of an optimiser as `state.PARAMETER.NAME`; a flat vector's state without its padding."""
    found = {
        f"{_STATE}.{parameter}.{name}": torch.as_tensor(value)
        for parameter, remembered in optimizer.state_dict()[_STATE].items()
        for name, value in remembered.items()
        if value is not None
    }
    # A vector for the parameters, or a number, as that of the steps.
    return {name: tensor if flat is None or not tensor.dim() else flat.packed(tensor) for name, tensor in found.items()}


def _load_optimizer(
    optimizer: torch.optim.Optimizer,
    flat: FlatParameters | None,
    prefix: str,
    arrays: Mapping[str, NDArray[np.generic]],
    source: Path,
) -> None:
    """Restores the state of an optimiser, but not its settings. No arrays mean that it had made no step."""
    state: dict[int, dict[str, Tensor]] = {}
    for path, array in arrays.items():
        optimizer_name, _, name = path.partition(".")
        if optimizer_name == prefix:
            # Checkpoints of older versions have `NAME` alone where the optimiser has one parameter.
            parameter, _, remembered = name.removeprefix(f"{_STATE}.").rpartition(".")
            tensor = torch.from_numpy(array.copy())
            if flat is not None and tensor.dim():
                tensor = _unpacked(flat, tensor, path, source)
            state.setdefault(int(parameter or 0), {})[remembered] = tensor
    n_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    if any(parameter >= n_parameters for parameter in state):
        raise ConfigurationError(
            f"the optimiser {prefix!r} in {source} has at least {max(state) + 1} parameters; expected "
            f"{n_parameters}. Resume with the networks of that run."
        )
    optimizer.load_state_dict({_STATE: state, "param_groups": optimizer.state_dict()["param_groups"]})


def _unpacked(flat: FlatParameters, tensor: Tensor, name: str, source: Path) -> Tensor:
    try:
        return flat.unpacked(tensor)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} in {source}: {error}") from error


def _load_generator(
    generator: torch.Generator, name: str, arrays: Mapping[str, NDArray[np.generic]], source: Path
) -> None:
    saved = arrays.get(name)
    if saved is None or saved.dtype != np.uint8 or saved.ndim != 1 or not saved.size:
        found = "is missing" if saved is None else f"is {saved.dtype}{list(saved.shape)}"
        raise ConfigurationError(
            f"the generator {name!r} in {source} {found}; expected the state of a generator, uint8[n]. Resume with the "
            "algorithm of that run."
        )
    restore_generator(generator, saved)


def _load_tensor(tensor: Tensor, name: str, arrays: Mapping[str, NDArray[np.generic]], source: Path) -> None:
    array = arrays.get(name)
    if array is None or array.shape != tuple(tensor.shape):
        found = "is missing" if array is None else f"has shape {list(array.shape)}"
        raise ConfigurationError(
            f"the tensor {name!r} in {source} {found}; expected shape {list(tensor.shape)}. Resume with the algorithm "
            "of that run."
        )
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(array.copy()))
