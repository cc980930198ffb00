"""A device that is none: its tensors are in main memory, but behave as those of an accelerator do.

    with Accelerator() as accelerator:
        algorithm = Impala(SPACES, SPEC, settings, device=accelerator.device)
        with accelerator.counting() as cost:
            algorithm.update(batch, progress=0.0)
        assert cost.waits == []

It computes with the CPU's kernels, so results can be compared with the CPU's to the bit. It refuses what a GPU refuses:
operations on tensors of two devices, and generators of another device than the numbers that they make. It counts what
costs time on a GPU: operations, each at least one launch of a kernel; operations for whose results the host waits; and
copies from pageable memory, for which the host waits, too. It shows no races: all is done when a call returns.

torch calls the device `lazy:0`: of all kinds of devices that a build for CPUs knows, it is the one that computes
nothing itself, needs no driver, and lets autograd run on the caller's thread. Factories work only in the thread that
entered.

torch's Python bindings treat CUDA otherwise than this device in one place, `Tensor.__setitem__`: for CUDA alone, an
assigned number becomes a tensor in main memory. It is filled in where it fits a slice or a mask; elsewhere it is copied
from pageable memory, and the host waits. That is refused here. `Tensor.new_tensor` makes its tensor below all
dispatching, on every device, from pageable memory: it is counted as the copy that it is.

torch's optimisers choose their kernels by the kind of device: here they choose those that they have for CUDA.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from rollcast.learner.devices.waits import COPIES, RESULTS_WAITED_FOR, finds_places

DEVICE = torch.device("lazy:0")

_OPTIMIZER = import_module("torch.optim.optimizer")  # torch.optim deletes the name

# Memory comes from torch's cache, without a kernel.
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


@dataclass
class Cost:
    """The operations of a piece of work.

    Attributes:
        operations: How often each operation was launched on the device, by name. Views and allocations are none.
        waits: The operations for which the host waited, in their order.
        copies: The copies from pageable memory to the device, as shapes, in their order.
    """

    operations: Counter[str] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)
    copies: list[tuple[int, ...]] = field(default_factory=list)


class OnDevice(Tensor):
    """A tensor that says it is on `DEVICE`; `inner` is the one in main memory that it stands for."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        wrapper.inner = inner
        return wrapper

    def __repr__(self, **_: object) -> str:
        return f"OnDevice({self.inner})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func is Tensor.tolist:  # torch reads the numbers below all dispatching
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor:  # likewise, it makes them
            asked = {"dtype": args[0].dtype, "device": args[0].device, **(kwargs or {})}
            made = torch.tensor(*args[1:], **{**asked, "device": "cpu"})
            return made.to(asked["device"])
        if func is Tensor.__setitem__ and isinstance(args[0], OnDevice):
            _check_assigned(*args)
        with torch._C.DisableTorchFunctionSubclass():
            if func == Tensor.data.__set__:  # torch would exchange its own part only, which holds no numbers
                args[0].inner = args[1].inner
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        return _run(func, args, dict(kwargs or {}))


_costs: list[Cost] = []
# By the address of torch's part: an operation gets another object of Python for the same generator. They are kept, so
# that no other generator gets that address.
_generators: dict[int, torch.Generator] = {}


class _NumbersFromTheHost(TorchFunctionMode):
    """Makes tensors of Python's numbers, which torch does below all dispatching."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        given = dict(kwargs or {})
        device = given.get("device")
        if func not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type != DEVICE.type:
            return func(*args, **given)
        return func(*args, **{**given, "device": "cpu"}).to(DEVICE)


class Accelerator(TorchDispatchMode):
    """While it is entered, torch makes tensors and generators on `device`.

    Attributes:
        device: What to give as `device=`.
    """

    device = DEVICE

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        return _run(func, args, dict(kwargs or {}))

    def __enter__(self) -> Self:
        self._patches = ExitStack()
        self._patches.enter_context(patch.object(torch, "Generator", _Generator))
        fused = [*_OPTIMIZER._get_fused_kernels_supported_devices(), DEVICE.type]
        self._patches.enter_context(patch.object(_OPTIMIZER, "_get_fused_kernels_supported_devices", lambda: fused))
        lists = [*_OPTIMIZER._get_foreach_kernels_supported_devices(), DEVICE.type]
        self._patches.enter_context(patch.object(_OPTIMIZER, "_get_foreach_kernels_supported_devices", lambda: lists))
        known = [*_OPTIMIZER._foreach_supported_types, OnDevice]
        self._patches.enter_context(patch.object(_OPTIMIZER, "_foreach_supported_types", known))
        self._patches.enter_context(_NumbersFromTheHost())
        self._patches.callback(_generators.clear)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    @contextmanager
    def counting(self) -> Iterator[Cost]:
        """Counts what is done meanwhile."""
        cost = Cost()
        _costs.append(cost)
        try:
            yield cost
        finally:
            _costs.remove(cost)


class _GeneratorKind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _CPU_GENERATOR)


_CPU_GENERATOR = torch.Generator


class _Generator(metaclass=_GeneratorKind):
    """Stands for torch.Generator, which makes none for this device."""

    def __new__(cls, device: torch.device | str = "cpu") -> Any:
        if torch.device(device).type != DEVICE.type:
            return _CPU_GENERATOR(device)
        generator = _DeviceGenerator()
        _generators[generator._cdata] = generator
        return generator


class _DeviceGenerator(_CPU_GENERATOR):
    """A generator of the device. Its state has another length than the CPU's, as on CUDA."""

    @property
    def device(self) -> torch.device:
        return DEVICE

    def get_state(self) -> Tensor:
        return torch.cat([super().get_state(), torch.zeros(16, dtype=torch.uint8)])

    def set_state(self, state: Tensor) -> Self:
        if len(state) != len(self.get_state()):
            raise RuntimeError("RNG state is wrong size")  # torch's words
        super().set_state(state[:-16].clone())
        return self


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    """Runs an operation on the CPU, as the device would."""
    leaves = tree_leaves((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, OnDevice)]
    elsewhere = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice)]
    asked = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    makes_here = bool(here) if asked is None else asked.type == DEVICE.type
    name = func._schema.name.removeprefix("aten::")
    if here or makes_here:
        _check_devices(name, here, elsewhere)
        _count(func, name, args, elsewhere, makes_here)
    generator = kwargs.get("generator")
    if generator is not None and (generator._cdata in _generators) is not makes_here:
        raise RuntimeError(f"{name}: expected a generator of the device that the numbers are made on")
    if makes_here and asked is not None:
        kwargs["device"] = torch.device("cpu")
    wrappers = {id(wrapper.inner): wrapper for wrapper in here}
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if name == "copy_" and not isinstance(args[0], OnDevice):
        return args[0]
    if not makes_here:
        return result

    def wrapped(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        known = wrappers.get(id(value))
        assert known is None or known.shape == value.shape, f"{name} resizes a tensor of the device"
        return OnDevice(value) if known is None else known

    return tree_map(wrapped, result)


def _check_assigned(target: OnDevice, index: object, value: object) -> None:
    """Refuses a number for which CUDA would wait: one for places that an index lists, or for a single number."""
    if isinstance(value, Tensor) and (value.dim() or isinstance(value, OnDevice)):
        return
    places = index if isinstance(index, tuple) else (index,)
    listed = [place for place in places if isinstance(place, Tensor | list | np.ndarray)]
    if any(not isinstance(place, Tensor) or place.dtype not in (torch.bool, torch.uint8) for place in listed):
        raise RuntimeError("a number assigned by an index that lists places: CUDA would wait; use index_put_")
    if not listed and not np.broadcast_to(False, target.shape)[index].ndim:
        raise RuntimeError("a number assigned to a single number: CUDA would wait; use fill_ on a slice")


def _inner(value: object) -> object:
    return value.inner if isinstance(value, OnDevice) else value


def _check_devices(name: str, here: list[OnDevice], elsewhere: list[Tensor]) -> None:
    unreal = [tensor for tensor in elsewhere if tensor.device.type == DEVICE.type]
    if unreal:
        raise RuntimeError(f"{name}: a tensor {list(unreal[0].shape)} was made on {DEVICE} outside of Accelerator")
    # A number may come from the host as a kernel's argument.
    strangers = [tensor for tensor in elsewhere if tensor.dim()]
    if here and strangers and name not in COPIES:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found at least two: {DEVICE} and cpu, "
            f"{list(strangers[0].shape)}"
        )


def _count(func: Any, name: str, args: Sequence[Any], elsewhere: list[Tensor], makes_here: bool) -> None:
    is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns)
    if is_view or name in _ALLOCATIONS:
        return
    reads = name in RESULTS_WAITED_FOR or (name in COPIES and not makes_here) or finds_places(name, args)
    reads = reads or (name == "copy_" and not isinstance(args[0], OnDevice))
    for cost in _costs:
        cost.operations[name] += 1
        if reads:
            cost.waits.append(name)
        if name in COPIES and elsewhere and not reads:
            cost.copies.append(tuple(elsewhere[0].shape))
