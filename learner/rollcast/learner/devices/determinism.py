"""Makes the arithmetic of a run bit-identical between runs, on the CPU and on a GPU."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch

from rollcast.actor.rounding import fix_rounding
from rollcast.services.errors import ConfigurationError

logger = logging.getLogger(__name__)

# cuBLAS adds in the same order each time only with these, says NVIDIA: https://docs.nvidia.com/cuda/cublas, section
# "Results reproducibility". It reads them when it starts.
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_VALUES: Final = (":4096:8", ":16:8")


@contextmanager
def deterministic_arithmetic(device: torch.device) -> Iterator[None]:
    """Makes torch's results bit-identical within a block, then restores torch's settings.

    In the block, torch chooses algorithms that add in a fixed order. cuDNN does not choose its algorithms by speed, and
    cuBLAS has the necessary workspace. Call it before any computation.

    Args:
        device: The device for the computations.

    Raises:
        ConfigurationError: CUDA has started without the workspace, or the environment asks for another workspace. Or an
            operation in the block cannot be bit-identical.
    """
    fix_rounding()
    if device.type == "cuda":
        _fix_cublas()
    if _sums_depend_on_addresses():
        logger.warning(
            "torch has computed before the run began, with sums whose last bits depend on memory addresses: other "
            "runs may not be bit-identical; set MKL_CBWR=AUTO,STRICT before Python starts"
        )
    with ExitStack() as stack:
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        # Not torch.use_deterministic_algorithms, which imports torch's compiler in two seconds of processor time.
        torch.set_deterministic_debug_mode("error")
        # Memory that nothing has written is never read here; to fill it costs a tenth of an update.
        _restored(stack, torch.utils.deterministic, "fill_uninitialized_memory", value=False)
        _restored(stack, torch.backends.cudnn, "benchmark", value=False)
        _restored(stack, torch.backends.cudnn, "deterministic", value=True)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error) or "torch.use_deterministic_algorithms" not in str(error):
                raise
            raise ConfigurationError(
                f"--deterministic on {device}: {str(error).split('. ', maxsplit=1)[0]}; expected bit-identical "
                "operations; choose --device cpu, another --network, or leave --deterministic out"
            ) from error


def _fix_cublas() -> None:
    value = os.environ.get(_CUBLAS)
    if value is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        raise ConfigurationError(
            f"--deterministic, and CUDA has started in this process without {_CUBLAS}, so cuBLAS may add in a varying "
            f"order; expected {' or '.join(_CUBLAS_VALUES)}; set it before CUDA starts"
        )
    if value is not None and value not in _CUBLAS_VALUES:
        raise ConfigurationError(
            f"{_CUBLAS} is {value!r} with --deterministic; expected {' or '.join(_CUBLAS_VALUES)}, with which cuBLAS "
            "adds in a fixed order; leave it out, or set one of them"
        )
    os.environ.setdefault(_CUBLAS, _CUBLAS_VALUES[0])


def _sums_depend_on_addresses() -> bool:
    """Returns True if a product of the same numbers changes with their memory addresses."""
    numbers, weights = torch.linspace(0.1, 1.0, 100).sin(), torch.linspace(0.2, 2.0, 300).cos().view(3, 100)
    memory = torch.empty(200)
    rows = (memory[offset : offset + 100].copy_(numbers).view(1, 100) for offset in (0, 1, 2, 4, 8))
    return len({torch.mm(row, weights.t()).numpy().tobytes() for row in rows}) > 1


def _restored(stack: ExitStack, owner: object, name: str, *, value: bool) -> None:
    """Sets an attribute until the stack is closed."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
