import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_POLICY_EXPANSION
from rollcast.services.policies.delta import decode_delta, encode_delta


@given(st.data(), st.binary(max_size=70))
def test_file_comes_back_bit_by_bit(data, file):
    base = data.draw(st.none() | st.binary(min_size=len(file), max_size=len(file)))
    delta = encode_delta(file, base)
    assert decode_delta(delta, base, n_bytes=len(file), what="policy 1") == file


def test_small_changes_take_few_bytes():
    rng = np.random.default_rng(0)
    before = rng.standard_normal(100_000, np.float32)
    after = before * (1 + 1e-3 * rng.standard_normal(100_000, np.float32))
    before, after = ((array.view(np.uint32) & 0xFFFF0000).tobytes() for array in (before, after))
    assert len(encode_delta(after, before)) < 0.15 * len(after)


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize(
    ("delta", "base", "n_bytes", "match"),
    [
        (
            encode_delta(b"x" * 8, None),
            b"y" * 9,
            8,
            "has 8 bytes; expected 9, the size of its base version",
        ),
        (encode_delta(b"x" * 8, None), None, 9, "compressed from 8 bytes; expected 9"),
        (encode_delta(ZEROS, None), ZEROS[:-4], len(ZEROS) - 4, "compressed from 1048576 bytes; expected 1048572"),
        (b"no frame of zstd", None, 8, "does not decompress"),
        (b"", b"x" * 8, 8, "does not decompress"),
        (encode_delta(b"12345678" * 9, None)[:-1], b"x" * 72, 72, "does not decompress"),
        (encode_delta(b"x" * 8, None) + b"more", b"x" * 8, 8, "does not decompress"),
        # A frame that does not say how large its content is could be of any size.
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 8),
            b"x" * 8,
            8,
            "compressed from -?[0-9]+ bytes; expected 8",
        ),
    ],
)
def test_refuses_what_cannot_be_the_file(delta, base, n_bytes, match):
    with pytest.raises(InvalidTensorError, match=match):
        decode_delta(delta, base, n_bytes=n_bytes, what="policy 7")


def test_refuses_a_bomb_before_it_decompresses(monkeypatch):
    def decompress(**_options):
        raise AssertionError("it was decompressed")

    monkeypatch.setattr(zstandard, "ZstdDecompressor", decompress)
    bomb = encode_delta(bytes(1 << 26), None)
    assert len(bomb) * MAX_POLICY_EXPANSION < 1 << 26
    with pytest.raises(LimitExceededError, match=f"at most {MAX_POLICY_EXPANSION} times") as refused:
        decode_delta(bomb, None, n_bytes=1 << 26, what="policy 7")
    assert refused.value.limit == "max_policy_expansion"
    with pytest.raises(InvalidTensorError, match="compressed from 67108864 bytes; expected 8"):
        decode_delta(bomb, b"12345678", n_bytes=8, what="policy 7")


def test_refuses_a_window_larger_than_the_file():
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    file = np.random.default_rng(0).bytes(1 << 12)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=len(file))
    delta = frame.compress(file) + frame.flush()
    try:
        decoded = decode_delta(delta, bytes(len(file)), n_bytes=len(file), what="policy 7")
    except InvalidTensorError as error:
        assert "does not decompress" in str(error)  # noqa: PT017  # both are right: zstd may shrink the window
    else:
        assert len(decoded) == len(file)
