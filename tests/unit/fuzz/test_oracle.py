"""Faults that the fuzzer has to find."""

import tracemalloc
from random import Random

import numpy as np
import pytest

from rollcast.services.errors import InvalidTensorError
from tests.fuzz.oracle import FindingError, Target, judge


@pytest.fixture(autouse=True)
def traced():
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


def target(decode, **fields):
    return Target(name="a decoder", decode=decode, seeds=(b"",), mutate=lambda content, rng: content, **fields)


def raising(error):
    def decode(content):
        raise error

    return decode


def test_a_value_and_a_documented_error_are_right():
    assert judge(target(len), b"xx").kind == "accepted"
    assert judge(target(raising(InvalidTensorError("it has no shape"))), b"").kind == "InvalidTensorError"


@pytest.mark.parametrize(
    "error", [TypeError("x"), MemoryError(), RecursionError(), OverflowError(), KeyError("x"), BaseException("a panic")]
)
def test_any_other_error_is_found(error):
    with pytest.raises(FindingError, match=f"a decoder: {type(error).__name__}"):
        judge(target(raising(error)), b"")


def test_memory_that_is_taken_and_given_back_is_found():
    def decode(content):
        np.empty(1 << 20, np.uint8)

    with pytest.raises(FindingError, match=r"allocated 1\d{6} bytes for a message of 3; may 2000"):
        judge(target(decode, limit_bytes=1994, bytes_per_byte=2), b"xxx")
    assert judge(target(decode, limit_bytes=2 << 20), b"").fraction == pytest.approx(0.5, rel=0.01)


def test_memory_that_an_error_keeps_from_being_seen_is_found():
    def decode(content):
        content = bytes(1 << 20)
        raise InvalidTensorError(f"it has {len(content)} bytes")

    with pytest.raises(FindingError, match="InvalidTensorError"):
        judge(target(decode, limit_bytes=2000), b"")


@pytest.mark.parametrize(
    ("encode", "match"),
    [
        (lambda value: value + b"x", "another value"),
        (lambda value: b"\xff", "round trip: UnicodeDecodeError"),
        (lambda value: 1 // 0, "round trip: ZeroDivisionError"),
    ],
)
def test_values_that_do_not_come_back_are_found(encode, match):
    def decode(content):
        content.decode()
        return content

    with pytest.raises(FindingError, match=match):
        judge(target(decode, encode=encode), b"a")


def test_those_that_do_are_right():
    decode = target(lambda content: content.lower(), encode=lambda value: value)
    assert judge(decode, Random(0).randbytes(9)).kind == "accepted"
