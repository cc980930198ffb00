"""Saves and loads the modules, optimisers and tensors among an object's attributes, without pickle.

`Algorithm.save` and `Algorithm.load` use it by default.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollcast.learner.algorithms.training_state import (
    load_module,
    read_training_state,
    with_prefix,
    write_training_state,
)
from rollcast.services.errors import ConfigurationError

_STATE: Final = "state"


def save_attributes(owner: object, directory: Path, values: Mapping[str, Any]) -> None:
    """Writes the modules, optimisers and tensors that an object has as attributes.

    Args:
        owner: The object. Only its own attributes are written: not the elements of lists, nor the attributes of
            attributes that are not modules.
        directory: Made if it does not exist.
        values: Further values to write, by name; anything JSON can hold.

    Raises:
        OSError: If they cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in vars(owner).items():
        if isinstance(value, nn.Module):
            tensors |= with_prefix(name, value.state_dict())
        elif isinstance(value, torch.optim.Optimizer):
            tensors |= with_prefix(name, _optimizer_tensors(value))
        elif isinstance(value, Tensor):
            tensors[name] = value
    write_training_state(directory, tensors, {"algorithm": _name_of(owner), **values})


def load_attributes(owner: object, directory: Path) -> dict[str, Any]:
    """Reads what `save_attributes` wrote, in place.

    Args:
        owner: An object of the same class, whose attributes have the same shapes.
        directory: The directory that `save_attributes` wrote.

    Returns:
        The further values, by name.

    Raises:
        ConfigurationError: If something is missing, or another class wrote it.
    """
    arrays, values = read_training_state(directory)
    if values.get("algorithm") != _name_of(owner):
        raise ConfigurationError(
            f"{directory} was written by {values.get('algorithm')!r}; expected {_name_of(owner)!r}. Resume with the "
            "algorithm of that run."
        )
    for name, value in vars(owner).items():
        if isinstance(value, nn.Module):
            load_module(value, name, arrays, source=directory)
        elif isinstance(value, torch.optim.Optimizer):
            _load_optimizer(value, name, arrays, directory)
        elif isinstance(value, Tensor):
            _load_tensor(value, name, arrays, directory)
    return values


def _name_of(owner: object) -> str:
    return f"{type(owner).__module__}:{type(owner).__qualname__}"


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Returns the state of an optimiser as `state.PARAMETER.NAME`."""
    state = optimizer.state_dict()[_STATE]
    return {
        f"{_STATE}.{parameter}.{name}": torch.as_tensor(value)
        for parameter, remembered in state.items()
        for name, value in remembered.items()
        if value is not None
    }


def _load_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str, arrays: Mapping[str, NDArray[np.generic]], source: Path
) -> None:
    """Restores the state of an optimiser, but not its settings."""
    start = f"{prefix}.{_STATE}."
    state: dict[int, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        if name.startswith(start):
            parameter, _, remembered = name.removeprefix(start).partition(".")
            state.setdefault(int(parameter), {})[remembered] = torch.from_numpy(array.copy())
    n_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    if any(parameter >= n_parameters for parameter in state):
        raise ConfigurationError(
            f"the optimiser {prefix!r} in {source} has at least {max(state) + 1} parameters; expected "
            f"{n_parameters}. Resume with the networks of that run."
        )
    optimizer.load_state_dict({_STATE: state, "param_groups": optimizer.state_dict()["param_groups"]})


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
