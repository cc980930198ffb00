"""The states of torch's generators in checkpoints: the algorithms' generators, and the global generators.

Different kinds of devices have different generators, whose states differ in length.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from rollcast.actor.seeds import derive_seed
from rollcast.learner.devices.choice import with_index

# Keeps the global generators' numbers apart from those of the run's other generators.
_GLOBAL: Final = 0x6C0BA1


def restore_generator(generator: torch.Generator, state: NDArray[np.generic]) -> None:
    """Makes a generator continue from a state.

    If the state comes from another kind of device, the generator gets a seed derived from that state. Its numbers then
    differ from the saved generator's numbers, but are the same after each load.

    Args:
        generator: The generator, of any device.
        state: uint8 `[n]`, the result of `get_state` of a generator of any device.
    """
    if state.shape == tuple(generator.get_state().shape):
        generator.set_state(torch.from_numpy(state.copy()))
        return
    generator.manual_seed(int.from_bytes(hashlib.sha256(state.tobytes()).digest()[:8], "little") >> 1)


def seed_global_generators(device: torch.device, seed: int) -> None:
    """Seeds the global generators of the CPU and of a device, from which layers like nn.Dropout draw.

    Args:
        device: The learner's device.
        seed: The run's seed.
    """
    for generator in _global_generators(device).values():
        generator.manual_seed(derive_seed(seed, _GLOBAL))


def global_generators_state(device: torch.device) -> dict[str, str]:
    """Returns the states of the global generators of the CPU and of a device, by kind of device, in base64."""
    return {
        kind: base64.b64encode(generator.get_state().numpy().tobytes()).decode("ascii")
        for kind, generator in _global_generators(device).items()
    }


def restore_global_generators(device: torch.device, states: Mapping[str, str]) -> None:
    """Makes the global generators continue from the result of `global_generators_state`.

    Args:
        device: The learner's device.
        states: The states by kind of device.

    Raises:
        ValueError: If a state is not in base64.
    """
    for kind, generator in _global_generators(device).items():
        if kind in states:
            restore_generator(generator, np.frombuffer(base64.b64decode(states[kind], validate=True), np.uint8))


def _global_generators(device: torch.device) -> dict[str, torch.Generator]:
    found = {"cpu": torch.default_generator}
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # before it there are no generators
        found["cuda"] = torch.cuda.default_generators[with_index(device).index]
    return found
