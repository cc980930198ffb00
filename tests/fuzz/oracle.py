"""Judges a decoder: it may return a value, or refuse the message by an error of the tree, in bounded memory."""

import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import ModuleType
from typing import Any

from google.protobuf.message import DecodeError

from rollcast.services.errors import RollcastError

# One list, one error message, a few headers: what any decoder may take for however short a message.
SMALL_CHANGE_BYTES = 256 << 10
# For memory that tracemalloc does not see (protobuf, safetensors, OpenSSL, torch): the process's high-water mark may
# rise by as much beyond the declared bound, for pages that the allocator keeps.
NATIVE_SLACK_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Target:
    """A decoder, as a function of bytes.

    Attributes:
        name: What it is called in the report.
        decode: Returns a value, or raises one of `errors`.
        seeds: Messages that the real encoders made.
        mutate: Changes a message where plain bytes stay at the surface; result of any length.
        encode: What decodes to an equal value; None: there is no encoder of its own.
        limit_bytes: What it may allocate for a message, on top of `bytes_per_byte` times its length.
        bytes_per_byte: See there.
        errors: Its documented errors.
        max_length: Of a message.
        limits: Modules' constants to lower while it runs: a limit that is reached costs microseconds then, not seconds.
    """

    name: str
    decode: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    mutate: Callable[[bytes, Random], bytes]
    encode: Callable[[Any], bytes] | None = None
    limit_bytes: int = SMALL_CHANGE_BYTES
    bytes_per_byte: int = 8
    errors: tuple[type[Exception], ...] = (RollcastError, DecodeError)
    max_length: int = 4096
    limits: tuple[tuple[ModuleType, str, int], ...] = ()

    def bound(self, message: bytes) -> int:
        """Returns the bytes that it may allocate for a message."""
        return self.limit_bytes + self.bytes_per_byte * len(message)


@dataclass(frozen=True)
class Verdict:
    """An outcome that is allowed.

    Attributes:
        kind: `accepted`, or the class of the error.
        n_bytes: What it had allocated at most.
        fraction: The same, as a fraction of its bound.
    """

    kind: str
    n_bytes: int
    fraction: float


@contextmanager
def limited(target: Target) -> Iterator[None]:
    """Lowers the limits that a target wants lowered."""
    before = [(module, name, getattr(module, name)) for module, name, _ in target.limits]
    for module, name, value in target.limits:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class FindingError(AssertionError):
    """An outcome that is not allowed."""


def judge(target: Target, message: bytes, *, is_repeated: bool = False) -> Verdict:
    """Hands a message to a decoder; tracemalloc is running.

    Args:
        target: The decoder.
        message: The message.
        is_repeated: Whether it has had it before, and allocated too much.

    Returns:
        What it did.

    Raises:
        FindingError: It raised an error that is none of its own, allocated more than it may, or what it returned does
            not survive being encoded and decoded again.
    """
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value: Any = None
    try:
        value = target.decode(message)
        kind = "accepted"
    except target.errors as error:
        kind = type(error).__name__
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust's is no Exception
        raise FindingError(f"{target.name}: {type(error).__name__}: {str(error)[:400]}") from error
    n_bytes = tracemalloc.get_traced_memory()[1] - before
    bound = target.bound(message)
    if n_bytes > bound and not is_repeated:
        # a module that is imported, or a cache that is filled, is not the message's
        return judge(target, message, is_repeated=True)
    if n_bytes > bound:
        raise FindingError(
            f"{target.name}: allocated {n_bytes} bytes for a message of {len(message)}; may {bound} ({kind})"
        )
    risen = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) << 10
    if risen > bound + NATIVE_SLACK_BYTES:
        raise FindingError(
            f"{target.name}: {risen} bytes more were resident after a message of {len(message)} ({kind})"
        )
    if kind == "accepted" and target.encode is not None:
        check_round_trip(target, value)
    return Verdict(kind, n_bytes, n_bytes / bound)


def check_round_trip(target: Target, value: Any) -> None:
    """Encodes and decodes a value, and compares what both encode to.

    Args:
        target: With an encoder.
        value: What it decoded.

    Raises:
        FindingError: It cannot be encoded, its encoding is refused, or decodes to another value.
    """
    assert target.encode is not None
    try:
        first = target.encode(value)
        second = target.encode(target.decode(first))
    except Exception as error:
        raise FindingError(f"{target.name}: round trip: {type(error).__name__}: {str(error)[:400]}") from error
    if first != second:
        raise FindingError(f"{target.name}: what was decoded is another value after encoding and decoding it again")
