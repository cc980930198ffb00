"""Reads and changes what an algorithm has learnt, by its checkpoints: parameters, targets, the first gradient."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.training_state import TENSORS_FILE, read_training_state, write_training_state


def learnt(algorithm: Algorithm, part: str = "") -> dict[str, Tensor]:
    """Returns the arrays of a checkpoint by name, or those of one part by their names within it."""
    with tempfile.TemporaryDirectory() as folder:
        algorithm.save(Path(folder))
        files = [file.parent for file in Path(folder).rglob(TENSORS_FILE)]  # one for each substep that learns
        found = {
            f"{'' if file == Path(folder) else f'{file.name}/'}{name}": torch.from_numpy(array.copy())
            for file in files
            for name, array in read_training_state(file)[0].items()
        }
    prefix = f"{part}." if part else ""
    return {name.removeprefix(prefix): array for name, array in found.items() if name.startswith(prefix)}


def teach(algorithm: Algorithm, changed: Mapping[str, Tensor]) -> None:
    """Replaces arrays of an algorithm, by loading a checkpoint that has them."""
    with tempfile.TemporaryDirectory() as folder:
        algorithm.save(Path(folder))
        arrays, values = read_training_state(Path(folder))
        unchanged = {name: torch.from_numpy(array) for name, array in arrays.items()}
        assert changed.keys() <= unchanged.keys()
        write_training_state(Path(folder), unchanged | dict(changed), values)
        algorithm.load(Path(folder))


def shake(algorithm: Algorithm, *parts: str, deviation: float = 0.3, seed: int = 0) -> None:
    """Adds normal noise to every array of some parts."""
    rng = torch.Generator().manual_seed(seed)
    teach(
        algorithm,
        {
            name: array + deviation * torch.randn(array.shape, generator=rng)
            for name, array in learnt(algorithm).items()
            if name.startswith(tuple(f"{part}." for part in parts))
        },
    )


def same(one: Algorithm, other: Algorithm) -> bool:
    """Returns True if all that two algorithms have learnt is the same, to the bit."""
    arrays, others = learnt(one), learnt(other)
    return arrays.keys() == others.keys() and all(torch.equal(array, others[name]) for name, array in arrays.items())


def first_gradient(algorithm: Algorithm, optimizer: str = "optimizer", *, adam_beta1: float = 0.9) -> Tensor:
    """Returns the gradient of the first update, `[n]` for the parameters in their order.

    Adam's mean of gradients begins at 0, and so is 1 - beta1 times the first gradient.
    """
    state = learnt(algorithm, optimizer)
    assert state["state.0.step"] == 1
    return state["state.0.exp_avg"] / (1.0 - adam_beta1)


def joined(gradients: tuple[Tensor, ...]) -> Tensor:
    """Returns gradients of several parameters as one vector."""
    return torch.cat([gradient.reshape(-1) for gradient in gradients])
