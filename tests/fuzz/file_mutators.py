"""Changes files where bytes stay at the surface: trees of JSON, headers of safetensors and npz, lines of text."""

import json
import math
import operator
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.byte_mutator import mutate_bytes, some_float, some_int, some_text
from tests.fuzz.messages import join_pieces, split_pieces

Mutate = Callable[[bytes, Random], bytes]

_LINES = (
    "a: &a [*a, *a]",
    "a: " + "[" * 100,
    "!!python/object/apply:os.system [ls]",
    "b: &b {<<: [*b, *b, {c: 1}]}",
    "x: !!bool x",
    "x: !!timestamp x",
    "x: !!int ''",
    "x: 1" + ":0" * 300 + ".5",
    "x: 2001-01-01 00:00:00 +99:99",
    "x: =",
    "run_dir: 2001-13-45",
    "x: 0x" + "f" * 40,
    "? [a, b]",
    "\ttab: 1",
    "<<: 1",
    "---",
    "seed: .nan",
    "- 1",
    "actor:" + "t" * 600,
    "viewer:aaaaaaaaaaaaaaaaaaaa",
)
_DTYPES = (b"<f8", b">f8", b"|O", b"<U9", b"|V8", b"<i2", b"<M8[s]", b"|b1", b"<c16", b"x")


def pieces_mutator(mutate_of: Callable[[int], Mutate]) -> Mutate:
    """Mutates one piece of an input as is right for it, or drops, repeats or swaps pieces.

    Args:
        mutate_of: What mutates a piece, by its place.
    """

    def mutate(content: bytes, rng: Random) -> bytes:
        pieces = list(split_pieces(content))
        if not pieces:
            return mutate_bytes(content, rng)
        place, other = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        roll = rng.random()
        if roll < 0.04:
            del pieces[place]
        elif roll < 0.08:
            pieces.insert(other, pieces[place])
        elif roll < 0.12:
            pieces[place], pieces[other] = pieces[other], pieces[place]
        else:
            pieces[place] = mutate_of(place)(pieces[place], rng)
        return join_pieces(pieces)

    return mutate


def mutate_json(content: bytes, rng: Random) -> bytes:
    """Changes a value, a key, or what kind of value it is."""
    try:
        tree = [json.loads(content)]
    except (ValueError, RecursionError):
        return mutate_bytes(content, rng)
    if rng.random() < 0.03:
        return rng.choice(
            (b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b"null", b"[]", b"{}", b"", b"1e999", b"\xff")
        )
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(tree))
        if places:
            _mutate_place(*rng.choice(places), rng)
    return json.dumps(tree[0] if tree else None).encode("utf-8", "surrogatepass")


def mutate_safetensors(content: bytes, rng: Random) -> bytes:
    """Changes the header, the values, or where one ends and the other begins."""
    if len(content) < 8 or rng.random() < 0.2:
        return mutate_bytes(content, rng)
    (length,) = struct.unpack("<Q", content[:8])
    head, values = content[8 : 8 + length], content[8 + length :]
    roll = rng.random()
    if roll < 0.4:
        head = mutate_json(head, rng)
        length = len(head)
    elif roll < 0.5:
        head = head.replace(
            b"F32", rng.choice((b"F16", b"F64", b"I32", b"U8", b"BF16", b"BOOL", b"F8_E4M3", b"C64")), 1
        )
        length = len(head)
    elif roll < 0.6:
        length = some_int(rng, 0, (1 << 64) - 1, length)
    else:
        values = _mutate_values(values, rng)
    return struct.pack("<Q", length) + head + values


def mutate_arrays(content: bytes, rng: Random) -> bytes:
    """Changes the pieces of an array file: their headers, their values, how many there are."""
    pieces = []
    rest = content
    while len(rest) >= 4 and len(pieces) < 64:
        (length,) = struct.unpack("<I", rest[:4])
        head = rest[4 : 4 + length]
        try:
            shapes = json.loads(head).values()
            n_bytes = operator.index(sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in shapes))
        except (ValueError, TypeError, AttributeError, RecursionError, DeprecationWarning):  # some names are old ones
            return mutate_bytes(content, rng)
        pieces.append((head, rest[4 + length : 4 + length + n_bytes]))
        rest = rest[4 + length + n_bytes :]
    if not pieces:
        return mutate_bytes(content, rng)
    place = rng.randrange(len(pieces))
    head, values = pieces[place]
    roll = rng.random()
    if roll < 0.05:
        del pieces[place]
    elif roll < 0.1:
        pieces.append(pieces[place])
    elif roll < 0.4:
        pieces[place] = (mutate_json(head, rng), values)
    elif roll < 0.5:
        dtype = rng.choice(_DTYPES)
        pieces[place] = (head.replace(b"<i8", dtype, 1).replace(b"<f4", dtype, 1), values)
    else:
        pieces[place] = (head, _mutate_values(values, rng))
    return b"".join(struct.pack("<I", len(head)) + head + values for head, values in pieces)


def text_mutator(donors: Sequence[bytes] = ()) -> Mutate:
    """Mutates lines of text.

    Args:
        donors: Others, whose lines are taken.
    """

    def mutate(content: bytes, rng: Random) -> bytes:
        lines = content.split(b"\n")
        place = rng.randrange(len(lines))
        roll = rng.random()
        if roll < 0.15:
            del lines[place]
        elif roll < 0.35:
            lines.insert(place, rng.choice(_LINES).encode())
        elif roll < 0.5 and donors:
            lines.insert(place, rng.choice(rng.choice(donors).split(b"\n")))
        elif roll < 0.75 and b":" in lines[place]:
            head, _, _ = lines[place].partition(b":")
            value = rng.choice(
                (some_text(rng), str(some_float(rng)), str(some_int(rng, -(1 << 70), 1 << 70)), "[]", "{}")
            )
            lines[place] = head + b": " + value.encode()
        else:
            lines[place] = mutate_bytes(lines[place], rng)
        return b"\n".join(lines)

    return mutate


def _places(tree: Any) -> Any:
    """Every place in a tree that holds a value: what it is in, and where."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _mutate_place(holder: Any, key: Any, rng: Random) -> None:
    value = holder[key]
    roll = rng.random()
    if roll < 0.12:
        del holder[key]
    elif roll < 0.2 and isinstance(holder, dict):
        holder[some_text(rng, key)] = value
    elif roll < 0.3 and isinstance(value, list):
        value.extend(value[:100] or [None])
    elif roll < 0.45:
        holder[key] = rng.choice((None, True, [], {}, [value], {"a": value}, "x", -1, 1.5, [[]], [1, "a"]))
    elif isinstance(value, bool) or value is None:
        holder[key] = rng.choice((True, False, None, 0, 1))
    elif isinstance(value, int):
        holder[key] = some_int(rng, -(1 << 70), 1 << 70, value)
    elif isinstance(value, float):
        holder[key] = some_float(rng)
    elif isinstance(value, str):
        holder[key] = some_text(rng, value)
    else:
        holder[key] = rng.choice((None, 0, ""))


def _mutate_values(values: bytes, rng: Random) -> bytes:
    """Puts numbers that are odd in the place of others; as many bytes, mostly."""
    if not values or rng.random() < 0.15:
        return mutate_bytes(values, rng)
    changed = bytearray(values)
    for _ in range(rng.choice((1, 1, 3))):
        form = rng.choice(("<f", "<d", "<q", "<i", "<B"))
        width = struct.calcsize(form)
        if form in ("<f", "<d"):
            value: float = some_float(rng)
            value = value if form == "<d" or abs(value) < 3e38 else float("nan")
        else:
            bits = 8 * width
            low, high = (0, 255) if form == "<B" else (-(1 << bits - 1), (1 << bits - 1) - 1)
            value = some_int(rng, low, high)
        place = rng.randrange(max(len(changed) // width, 1)) * width
        packed = struct.pack(form, value)
        changed[place : place + width] = packed[: len(changed) - place]
    return bytes(changed)
