"""Changes bytes, numbers and texts: what is beneath every structure."""

import math
from random import Random

# Around every width's edges: what lengths, counts and offsets overflow at.
_EDGES = sorted(
    {sign * (1 << bits) + by for bits in (0, 7, 8, 15, 16, 31, 32, 53, 62, 63) for by in (-1, 0, 1) for sign in (1, -1)}
)
_FLOATS = (0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 3.5e38, 0.5)
_TEXTS = (
    "",
    "0",
    "a",
    "/",
    "a/b",
    "\0",
    "\x1b[2J",
    "\u202e",
    "\U0001f600",
    "%s%n{}",
    "../../x",
    "x" * 129,
    "nan",
    "1e999",
)


def some_int(rng: Random, low: int, high: int, near: int = 0) -> int:
    """An integer in [low, high]: small, near another one, or at an edge."""
    roll = rng.random()
    if roll < 0.35:
        value = rng.randint(-2, 9)
    elif roll < 0.7:
        value = near + rng.choice((-1, 1, -near, near, 2 * near))
    else:
        value = rng.choice(_EDGES)
    return min(max(value, low), high)


def some_float(rng: Random) -> float:
    """A float, more often than not one that is odd."""
    return rng.choice(_FLOATS) if rng.random() < 0.8 else rng.uniform(-1e6, 1e6)


def some_text(rng: Random, near: str = "") -> str:
    """A text: one that is odd, or a changed one."""
    if not near or rng.random() < 0.5:
        return rng.choice(_TEXTS)
    place = rng.randrange(len(near))
    return near[:place] + rng.choice(("", "\0", "/", "x", near)) + near[place + rng.randrange(2) :]


def mutate_bytes(content: bytes, rng: Random) -> bytes:
    """Flips, overwrites, removes, repeats or inserts a few bytes."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 4, 8, rng.randrange(1, 64)))
        roll = rng.randrange(6)
        if roll == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif roll == 1 and place < len(changed):
            changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif roll == 2:
            del changed[place : place + length]
        elif roll == 3:
            changed[place:place] = changed[place : place + length]
        elif roll == 4:
            changed[place:place] = rng.randbytes(length)
        else:
            changed[place : place + length] = rng.choice((b"\0", b"\xff", b"\x80")) * length
    return bytes(changed)
