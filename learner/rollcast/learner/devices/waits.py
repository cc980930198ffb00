"""Finds operations in which the host waits for a device, or copies from main memory. No graph can contain them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The host waits for their result: for a number, or for the size of what they return.
RESULTS_WAITED_FOR: Final = frozenset(
    {
        "_local_scalar_dense",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "multinomial",  # looks at its weights
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)
# They copy numbers between devices if their arguments are on two devices.
COPIES: Final = frozenset({"_to_copy", "copy_", "copy", "_copy_from"})
_PUTS: Final = frozenset({"index_put", "index_put_", "_index_put_impl_"})


class WaitDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its hook no types
    """Finds the operations of a thread, and of its backward passes, in which the host would wait for a GPU.

    with WaitDetector() as waits:
        algorithm.update(batch, progress=0.0)
    assert not waits.found

    torch's own detector, `torch.cuda.set_sync_debug_mode`, applies to all threads, and other threads may wait.

    Attributes:
        found: The names of these operations, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.found: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from wrapping the hook, which would import its compiler and slow each call."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Inspects an operation, and runs it."""
        del types
        given = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        if _is_waited_for(name, args, given):
            self.found.append(name)
        return func(*args, **given)


def finds_places(name: str, args: Sequence[Any]) -> bool:
    """Returns whether an operation indexes with a mask, whose True positions the device must find first.

    An assignment of a single number needs no positions.

    Args:
        name: The operation, without "aten::".
        args: Its arguments.
    """
    if name != "index" and name not in _PUTS:
        return False
    is_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return is_mask and (name == "index" or args[2].numel() != 1)


def _is_waited_for(name: str, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    kinds = {leaf.device.type for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)}
    if name in COPIES:
        if given.get("device") is not None:
            kinds.add(torch.device(given["device"]).type)
        return len(kinds) > 1
    if kinds <= {"cpu"}:
        return False
    if name in _PUTS and args[2].device.type == "cpu":
        # A number that is filled in by a mask is an argument of the kernel; any other is copied.
        return not all(index is None or index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return name in RESULTS_WAITED_FOR or finds_places(name, args)
