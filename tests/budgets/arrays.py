"""Counts numpy's arrays: the memory that is allocated for them, and what is written into arrays that are there.

numpy has a hook for the first, a handler of memory (NEP 49), which is for C. For the second there is none: the slot of
`numpy.ndarray` that assigns is exchanged. Views count as calls, not as arrays.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.budgets.work import Work, our_caller

# Smaller ones, which hold a scalar, come and go inside of numpy.
_LEAST_BYTES = 9
_NAME = b"mem_handler"  # a capsule keeps a pointer to it


class _Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """numpy's `PyDataMem_Handler`."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


_python = ctypes.PyDLL(None)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyType_GetSlot.restype = ctypes.c_void_p
_python.PyType_GetSlot.argtypes = [ctypes.py_object, ctypes.c_int]

# Places in the table of numpy's C API, which never change: PyDataMem_SetHandler, PyDataMem_GetHandler.
_api = (ctypes.c_void_p * 306).from_address(_python.PyCapsule_GetPointer(np._core.multiarray._ARRAY_API, None))
_set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_api[304])
_get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(_api[305])

_Malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Calloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Assign = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.py_object)

_numpys = _Handler.from_address(_python.PyCapsule_GetPointer(_get_handler(), _NAME)).allocator
_malloc, _calloc = _Malloc(_numpys.malloc), _Calloc(_numpys.calloc)
_works: list[Work] = []


@_Malloc
def _counted_malloc(context: int | None, n_bytes: int) -> int | None:
    _count_array(n_bytes)
    return _malloc(context, n_bytes)


@_Calloc
def _counted_calloc(context: int | None, n: int, n_bytes: int) -> int | None:
    _count_array(n * n_bytes)
    return _calloc(context, n, n_bytes)


# Memory is freed and resized by numpy's own functions, which arrays keep: some outlive the counting.
_counting = _Handler(
    b"counting",
    1,
    _Allocator(
        _numpys.context,
        ctypes.cast(_counted_malloc, ctypes.c_void_p),
        ctypes.cast(_counted_calloc, ctypes.c_void_p),
        _numpys.realloc,
        _numpys.free,
    ),
)
_capsule = _python.PyCapsule_New(ctypes.addressof(_counting), _NAME, None)


def _count_array(n_bytes: int) -> None:
    for work in _works:
        if work.is_counting and n_bytes >= _LEAST_BYTES and (site := our_caller("numpy")) is not None:
            work.add("arrays", site)
            work.add("bytes copied", site, n_bytes)


def _count_copy(n_bytes: int) -> None:
    for work in _works:
        if work.is_counting and (site := our_caller("numpy")) is not None:
            work.add("bytes copied", site, n_bytes)


@contextmanager
def allocations_noticed() -> Iterator[None]:
    """Has numpy tell of the arrays that the calling thread makes."""
    before = _set_handler(_capsule)
    try:
        yield
    finally:
        _set_handler(before)


@contextmanager
def arrays_counted(work: Work) -> Iterator[None]:
    """Counts arrays made, and bytes that are copied into new ones and into others; the latter by any thread."""
    slot = ctypes.c_void_p.from_address(_mapping_methods() + 2 * ctypes.sizeof(ctypes.c_void_p))
    assign_slot = slot.value
    assert assign_slot == _python.PyType_GetSlot(np.ndarray, 3), "numpy.ndarray has another layout here"
    assign = _Assign(assign_slot)

    @_Assign
    def counted(array: np.ndarray, index: Any, value: Any) -> int:
        if work.is_counting:
            work.is_counting = False
            n_bytes = array[index].nbytes
            work.is_counting = True
            _count_copy(n_bytes)
        return assign(array, index, value)

    _works.append(work)
    slot.value = ctypes.cast(counted, ctypes.c_void_p).value
    try:
        with (
            patch.object(np, "copyto", _with_copies_counted(np.copyto, lambda args, _: args[0])),
            patch.object(np, "concatenate", _with_copies_counted(np.concatenate, lambda _, given: given.get("out"))),
            allocations_noticed(),
        ):
            yield
    finally:
        slot.value = assign_slot
        _works.remove(work)


def _mapping_methods() -> int:
    """Returns the address of `PyTypeObject.tp_as_mapping` of numpy.ndarray: eleven pointers after the head."""
    head = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
    address = ctypes.c_void_p.from_address(id(np.ndarray) + head + 11 * ctypes.sizeof(ctypes.c_void_p)).value
    assert address is not None
    return address


def _with_copies_counted(
    function: Callable[..., Any], target: Callable[[tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[..., Any]:
    def call(*args: Any, **given: Any) -> Any:
        array = target(args, given)
        if array is not None:
            _count_copy(array.nbytes)
        return function(*args, **given)

    return call
