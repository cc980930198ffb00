import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollcast.learner.replay.columns.memory import PendingRows
from rollcast.learner.replay.saving.array_file import ArrayFileWriter, read_chunks
from rollcast.learner.replay.saving.row_guard import RowGuard
from rollcast.services.errors import ConfigurationError

DTYPES = ["?", "<i1", "<u2", "<i4", "<u8", "<f2", "<f4", "<f8"]
ARRAYS = hnp.arrays(
    st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements={}
)
PIECES = st.lists(st.dictionaries(st.text(max_size=3), ARRAYS, max_size=3), max_size=3)


def write(path: Path, pieces: list[dict[str, np.ndarray]]) -> ArrayFileWriter:
    with ArrayFileWriter(path) as writer:
        for piece in pieces:
            writer.append(piece)
    return writer


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.slow
@settings(max_examples=40)
@given(pieces=PIECES)
def test_written_arrays_are_read_back(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("arrays") / "file"
    writer = write(path, pieces)
    found = list(read_chunks(path))
    assert len(found) == len(pieces)
    for piece, expected in zip(found, pieces, strict=True):
        assert_same(piece, expected)
    assert writer.digest == xxhash.xxh3_128_hexdigest(path.read_bytes())


def test_arrays_of_any_order_in_memory_are_written_as_they_read(tmp_path):
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2].T
    write(tmp_path / "file", [{"a": array}])
    ((piece,),) = [list(read_chunks(tmp_path / "file"))]
    np.testing.assert_array_equal(piece["a"], array)


def test_reads_only_the_requested_arrays(tmp_path):
    pieces = [{"a": np.arange(3), "b": np.arange(4.0)}, {"b": np.arange(2.0), "a": np.arange(5)}]
    write(tmp_path / "file", pieces)
    for found, expected in zip(read_chunks(tmp_path / "file", frozenset({"b"})), pieces, strict=True):
        assert_same(found, {"b": expected["b"]})


def test_does_not_overwrite_an_existing_file(tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    with pytest.raises(FileExistsError):
        ArrayFileWriter(tmp_path / "file")


def piece_of(header: object, content: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(encoded)) + encoded + content


@pytest.mark.parametrize(
    "content",
    [
        b"\1",
        struct.pack("<I", 1 << 31) + b"{}",
        piece_of({"a": ["<f4", [3]]}, bytes(11)),
        piece_of({"a": ["<f4", [1 << 62, 1 << 62]]}),
        piece_of({"a": ["<f4", [-1]]}),
        piece_of({"a": ["<f4", [True]]}),
        piece_of({"a": ["<f4", 3]}),
        piece_of({"a": ["<f4", [1] * 33]}, bytes(4)),
        piece_of({"a": ["|O", [1]]}, bytes(8)),
        piece_of({"a": ["no dtype", [1]]}, bytes(8)),
        piece_of({"a": "<f4"}),
        piece_of(["a"]),
        piece_of(b"\xff"),
        piece_of(b"[" * 50_000),
    ],
)
def test_rejects_damaged_pieces(tmp_path, content):
    (tmp_path / "file").write_bytes(piece_of({"a": ["|u1", [2]]}, b"ab") + content)
    pieces = read_chunks(tmp_path / "file")
    np.testing.assert_array_equal(next(pieces)["a"], np.frombuffer(b"ab", np.uint8))
    with pytest.raises(ConfigurationError, match=r"file cannot be read: .*; resume from another checkpoint"):
        next(pieces)


class Rows:
    """A store of one number a slot, as a guard sees it."""

    def __init__(self, n_slots: int) -> None:
        self.values = np.arange(n_slots)
        self.n_reads = 0

    def read(self, slots: np.ndarray) -> PendingRows:
        self.n_reads += 1
        copied = {"value": self.values.take(slots)}
        return lambda: copied


def test_nothing_is_copied_without_a_snapshot_or_for_forgotten_slots():
    rows, guard = Rows(4), RowGuard()
    guard.before_overwriting(np.arange(4), rows.read)
    guard.begin(np.ones(4, bool))
    guard.forget(np.array([0, 1]))
    guard.before_overwriting(np.array([0, 1]), rows.read)
    assert rows.n_reads == 0
    guard.end()
    guard.before_overwriting(np.arange(4), rows.read)
    assert rows.n_reads == 0
