"""Hostile tensors, spaces and policies: refused by an error of the tree, with next to no "
"memory."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
import xxhash

from rollcast.services.errors import InvalidInputError, InvalidSpaceError, InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_CHUNK_BYTES
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.delta import encode_delta
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.spaces.codec import environment_spaces_from_proto, space_from_proto
from rollcast.services.wire.tensors import tensor_from_proto, tensor_to_proto
from rollcast.v1 import policy_pb2, space_pb2, tensor_pb2

F32 = tensor_pb2.DATA_TYPE_FLOAT32


@pytest.fixture(autouse=True)
def little_memory():
    """No attack may cost more than its own message and a little."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": 0, "shape": [1], "data": b"1"},
        {"dtype": 99, "shape": [1], "data": b"1"},
        {"dtype": -1, "shape": [1], "data": b"1"},
        {"dtype": F32, "shape": [-1], "data": b""},
        {"dtype": F32, "shape": [-2, -2], "data": b"0" * 16},
        {"dtype": F32, "shape": [2**62], "data": b""},
        {"dtype": F32, "shape": [2**32, 2**32], "data": b""},
        {"dtype": F32, "shape": [2**63 - 1] * 32, "data": b"0" * 4},
        {"dtype": F32, "shape": [1] * 33, "data": b"0" * 4},
        {"dtype": F32, "shape": [1] * 100_000, "data": b"0" * 4},
        {"dtype": F32, "shape": [2], "data": b"0" * 7},
        {"dtype": F32, "shape": [2], "data": b"0" * 9},
        {"dtype": F32, "shape": [], "data": b""},
        {"dtype": F32, "shape": [0, 2**63 - 1], "data": b"0"},
        # found by tests.fuzz: as many bytes as it says, and an array that numpy cannot make
        {"dtype": F32, "shape": [0, 2**63 - 1], "data": b""},
        {"dtype": F32, "shape": [2**31, 0, 2**31], "data": b""},
        {"dtype": tensor_pb2.DATA_TYPE_BOOL, "shape": [1], "data": b"\xff"},
        {"dtype": F32, "shape": [1], "data": b"0000", "deferred": True},
    ],
)
def test_malformed_tensors(fields):
    with pytest.raises(InvalidTensorError, match="the column"):
        tensor_from_proto(tensor_pb2.Tensor(**fields), what="the column")


def scalar(value, dtype=np.float32):
    return tensor_to_proto(np.array(value, dtype))


def box(shape, low=0.0, high=1.0, dtype=np.float32):
    return space_pb2.Space(box=space_pb2.Box(low=scalar(low, dtype), high=scalar(high, dtype), shape=shape))


def nested(depth, kind):
    space = box([1])
    for _ in range(depth):
        if kind == "tuple":
            space = space_pb2.Space(tuple=space_pb2.TupleSpace(members=[space]))
        else:
            member = space_pb2.NamedSpace(key="a", space=space)
            space = space_pb2.Space(dict=space_pb2.DictSpace(members=[member]))
    return space


def named(*keys):
    members = [space_pb2.NamedSpace(key=key, space=box([1])) for key in keys]
    return space_pb2.Space(dict=space_pb2.DictSpace(members=members))


@pytest.mark.parametrize(
    "space",
    [
        space_pb2.Space(),
        space_pb2.Space(box=space_pb2.Box()),
        box([2**40]),
        box([2**32, 2**32]),
        box([-1]),
        box([1] * 33),
        box([3], low=2.0),
        box([3], low=np.nan),
        space_pb2.Space(box=space_pb2.Box(low=scalar(0), high=scalar(1, np.float64), shape=[2])),
        space_pb2.Space(box=space_pb2.Box(low=tensor_to_proto(np.zeros(3)), high=scalar(1, np.float64), shape=[2])),
        space_pb2.Space(discrete=space_pb2.Discrete(n=0)),
        space_pb2.Space(discrete=space_pb2.Discrete(n=-3)),
        space_pb2.Space(discrete=space_pb2.Discrete(n=2**63 - 1, start=2**62)),
        space_pb2.Space(multi_binary=space_pb2.MultiBinary(shape=[2**50])),
        space_pb2.Space(multi_binary=space_pb2.MultiBinary(shape=[])),
        space_pb2.Space(multi_binary=space_pb2.MultiBinary(shape=[0])),
        space_pb2.Space(multi_discrete=space_pb2.MultiDiscrete()),
        space_pb2.Space(multi_discrete=space_pb2.MultiDiscrete(nvec=tensor_to_proto(np.array([2, 0])))),
        space_pb2.Space(multi_discrete=space_pb2.MultiDiscrete(nvec=tensor_to_proto(np.array([2.5])))),
        space_pb2.Space(
            multi_discrete=space_pb2.MultiDiscrete(
                nvec=tensor_to_proto(np.array([2, 3])), start=tensor_to_proto(np.array([1]))
            )
        ),
        named(),
        named("a", "a"),
        named("a/b"),
        named(""),
        space_pb2.Space(tuple=space_pb2.TupleSpace()),
        space_pb2.Space(tuple=space_pb2.TupleSpace(members=[box([])] * 1025)),
        space_pb2.Space(tuple=space_pb2.TupleSpace(members=[box([10]), box([2**23])])),
        nested(17, "tuple"),
        nested(17, "dict"),
    ],
)
def test_malformed_spaces(space):
    with pytest.raises(InvalidInputError, match="space"):
        space_from_proto(space)


def test_a_space_nested_like_a_bomb_stops_at_the_parser_or_the_limit():
    with pytest.raises(InvalidSpaceError, match="nested deeper than 16"):
        space_from_proto(nested(40, "tuple"))


@pytest.mark.timeout(30)
def test_the_product_of_a_hundred_thousand_dimensions_is_not_computed():
    """It would take minutes, and no other thread would run."""
    endless = space_pb2.Space(multi_binary=space_pb2.MultiBinary(shape=[2**63 - 1] * 100_000))
    with pytest.raises(InvalidSpaceError, match="at most 32 dimensions") as refused:
        space_from_proto(endless)
    assert refused.value.limit == "max_rank"


def test_the_limits_hold_for_all_substeps_together():
    tuple_space = space_pb2.Space(tuple=space_pb2.TupleSpace(members=[box([])] * 600))
    substeps = [space_pb2.SubstepSpaces(key=str(i), observation=tuple_space, action=box([1])) for i in range(2)]
    with pytest.raises(InvalidSpaceError, match="leaves; expected at most"):
        environment_spaces_from_proto(substeps)


def file_of(header, body=b""):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


def tensor_entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "file",
    [
        b"x",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        file_of(b"not json"),
        file_of(tensor_entry(shape=[2**40]), b"0000"),
        file_of(tensor_entry(shape=[2**33, 2**33]), b"0000"),
        file_of(tensor_entry(offsets=[0, 2**40]), b"0000"),
        file_of(tensor_entry(offsets=[4, 0]), b"0000"),
        file_of(tensor_entry(dtype="OBJECT"), b"0000"),
        file_of(tensor_entry(dtype="F4"), b"0000"),
        file_of(tensor_entry(), b"00000000"),
        file_of({"w": {"dtype": "F32"}}),
        file_of(tensor_entry(dtype="F8_E4M3", offsets=[0, 1]), b"0"),
    ],
)
@pytest.mark.parametrize("encoding", PolicyEncoding)
def test_malformed_policy_files(file, encoding):
    chunk = chunk_of(encode_delta(file, None) if encoding is PolicyEncoding.DELTA else file)
    chunk.encoding = encoding.value
    chunk.file_bytes, chunk.file_digest = len(file), xxhash.xxh3_128_digest(file)
    with pytest.raises(InvalidTensorError, match="policy 1 is not a safetensors file"):
        PolicyAssembler(encodings=PolicyEncoding).add(chunk)


def chunk_of(content, **fields):
    return policy_pb2.PolicyChunk(
        version=1, count=1, total_bytes=len(content), digest=xxhash.xxh3_128_digest(content), payload=content, **fields
    )


BOMB = encode_delta(bytes(1 << 26), None)
DELTA = policy_pb2.POLICY_ENCODING_DELTA


@pytest.mark.parametrize(
    ("chunk", "error", "match"),
    [
        (chunk_of(BOMB, encoding=DELTA, file_bytes=1 << 26), LimitExceededError, "expected at most 16 times"),
        (chunk_of(BOMB, encoding=DELTA, file_bytes=8), InvalidTensorError, "compressed from 67108864 bytes"),
        (chunk_of(BOMB, encoding=DELTA, file_bytes=2**63), LimitExceededError, "expected at most 1073741824"),
        (chunk_of(BOMB, encoding=DELTA, file_bytes=1 << 26, base_version=7), InvalidTensorError, "to version 7"),
        (chunk_of(BOMB, encoding=99), InvalidTensorError, "has encoding 99; expected one of"),
    ],
)
def test_bombs_and_baseless_deltas_are_refused(chunk, error, match):
    with pytest.raises(error, match=match):
        PolicyAssembler(encodings=PolicyEncoding).add(chunk)


def test_an_encoding_that_nobody_asked_for_is_refused():
    for encoding in (PolicyEncoding.BFLOAT16, PolicyEncoding.DELTA):
        with pytest.raises(InvalidTensorError, match="expected one of \\[0\\], the accepted ones"):
            PolicyAssembler().add(chunk_of(b"x", encoding=encoding.value))


def chunk(**fields):
    values = {"version": 1, "index": 0, "count": 2, "total_bytes": 4, "digest": b"d" * 16, "payload": b"xx"}
    return policy_pb2.PolicyChunk(**(values | fields))


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([chunk(total_bytes=2**63)], LimitExceededError),
        ([chunk(payload=b"x" * (MAX_CHUNK_BYTES + 1), total_bytes=2**22)], LimitExceededError),
        ([chunk(payload=b"xxxxx")], LimitExceededError),
        ([chunk(index=1)], InvalidTensorError),
        ([chunk(count=0)], InvalidTensorError),
        ([chunk(count=2**32 - 1)], InvalidTensorError),
        ([chunk(payload=b"")], InvalidTensorError),
        ([chunk(), chunk()], InvalidTensorError),
        ([chunk(), chunk(index=1, version=2)], InvalidTensorError),
        ([chunk(), chunk(index=1, digest=b"e" * 16)], InvalidTensorError),
        ([chunk(), chunk(index=1, count=3)], InvalidTensorError),
        ([chunk(), chunk(index=1, payload=b"x")], InvalidTensorError),
        ([chunk(), chunk(index=1)], InvalidTensorError),
    ],
)
def test_malformed_chunks(chunks, error):
    assembler = PolicyAssembler()
    for good in chunks[:-1]:
        assert assembler.add(good) is None
    with pytest.raises(error, match=r"policy [12]"):
        assembler.add(chunks[-1])
