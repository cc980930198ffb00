"""Changes protobuf messages where parsers and byte-level mutation stay at the surface: fields, counts, tensors."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rollcast.services.wire.tensors import DTYPES
from rollcast.v1 import tensor_pb2
from tests.fuzz.byte_mutator import mutate_bytes, some_float, some_int, some_text
from tests.fuzz.messages import join_pieces, split_pieces

_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 99),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
# More would leave the decoders less than their share of the time.
_MAX_DATA_BYTES = 4096
_MAX_COPIES = 2000


def message_mutator(
    kind: type[Message], donors: Sequence[bytes], repair: Callable[[Any, Random], None] = lambda message, rng: None
) -> Callable[[bytes, Random], bytes]:
    """Mutates single messages.

    Args:
        kind: Of the message.
        donors: Others of that kind, of which parts are taken.
        repair: Makes digests and sums right again, which would stop everything else.
    """

    def mutate(content: bytes, rng: Random) -> bytes:
        message = _parsed(kind, content)
        if message is None:
            return mutate_bytes(rng.choice(donors), rng)
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            mutate_message(message, rng, _parsed(kind, rng.choice(donors)))
        if rng.random() < 0.9:
            repair(message, rng)
        return message.SerializeToString()

    return mutate


def stream_mutator(
    kind: type[Message],
    donors: Sequence[bytes],
    repair: Callable[[list[Any], Random], None] = lambda messages, rng: None,
    *,
    serialize: Callable[[Any, Random], bytes] = lambda message, rng: message.SerializeToString(),
) -> Callable[[bytes, Random], bytes]:
    """Mutates streams of messages, which an input has one after the other.

    Args:
        kind: Of the messages.
        donors: Other streams.
        repair: Makes digests and sums right again.
        serialize: How a message becomes a piece of the input.
    """

    def mutate(content: bytes, rng: Random) -> bytes:
        messages = [parsed for piece in split_pieces(content) if (parsed := _parsed(kind, piece)) is not None]
        others = [_parsed(kind, piece) for piece in split_pieces(rng.choice(donors))]
        if not messages:
            messages = [_copy(other) for other in others if other is not None]
        for _ in range(rng.choice((1, 1, 2, 3))):
            if rng.random() < 0.25:
                _mutate_list(messages, rng, others)
            elif messages:
                mutate_message(rng.choice(messages), rng, rng.choice(others))
        if rng.random() < 0.9:
            repair(messages, rng)
        return join_pieces(serialize(message, rng) for message in messages)

    return mutate


def mutate_message(message: Message, rng: Random, donor: Message | None = None) -> None:
    """Changes one thing in a message.

    Args:
        message: The message.
        rng: Chooses.
        donor: Another message, of which parts of the same kind may be taken.
    """
    part = _some_part(message, rng)
    roll = rng.random()
    if isinstance(part, tensor_pb2.Tensor) and roll < 0.7:
        mutate_tensor(part, rng)
    elif roll < 0.8 and donor is not None and (other := _some_part(donor, rng)).DESCRIPTOR is part.DESCRIPTOR:
        part.CopyFrom(other)
    else:
        _mutate_field(part, rng.choice(part.DESCRIPTOR.fields), rng)


def mutate_tensor(tensor: tensor_pb2.Tensor, rng: Random) -> None:
    """Changes a tensor, and its bytes with it so that they fit, or so that they do not."""
    roll = rng.randrange(6)
    shape = list(tensor.shape)
    if roll == 0:
        tensor.dtype = rng.choice([*DTYPES, 0, 99])
    elif roll == 1 and shape:
        place = rng.randrange(len(shape))
        shape[place] = some_int(rng, -(1 << 63), (1 << 63) - 1, shape[place])
        tensor.shape[:] = shape
    elif roll == 2:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 1, 2, 1 << 40)))
        tensor.shape[:] = shape
    elif roll == 3 and shape:
        del shape[rng.randrange(len(shape))]
        tensor.shape[:] = shape
    elif roll == 4:
        tensor.deferred = not tensor.deferred
        if tensor.deferred and rng.random() < 0.8:
            tensor.data = b""
        return
    else:
        tensor.data = mutate_bytes(tensor.data, rng)
        return
    if rng.random() < 0.8 and not tensor.deferred:
        _fit(tensor, rng)


def _fit(tensor: tensor_pb2.Tensor, rng: Random) -> None:
    n_bytes = DTYPES[tensor.dtype].itemsize if tensor.dtype in DTYPES else 1
    for dimension in tensor.shape:
        n_bytes *= max(dimension, 0)
    if n_bytes <= _MAX_DATA_BYTES:
        content = tensor.data[:n_bytes]
        tensor.data = content + rng.choice((b"\0", b"\1", b"\xff")) * (n_bytes - len(content))


def _mutate_field(part: Message, field: FieldDescriptor, rng: Random) -> None:
    if field.is_repeated:
        _mutate_repeated(getattr(part, field.name), field, rng)
    elif field.message_type is not None:
        if rng.random() < 0.6:
            part.ClearField(field.name)
        else:
            getattr(part, field.name).SetInParent()
    else:
        setattr(part, field.name, _some_value(field, rng, getattr(part, field.name)))


def _mutate_repeated(values: Any, field: FieldDescriptor, rng: Random) -> None:
    roll = rng.random()
    if len(values) and roll < 0.25:
        del values[rng.randrange(len(values))]
    elif len(values) and roll < 0.5:
        value = values[rng.randrange(len(values))]
        n = rng.choice((1, 1, 1, 2, 40, _MAX_COPIES if rng.random() < 0.05 else 1))
        values.extend([_copy(value) if isinstance(value, Message) else value] * n)
    elif len(values) > 1 and roll < 0.65:
        kept = [_copy(value) if isinstance(value, Message) else value for value in values]
        rng.shuffle(kept)
        del values[:]
        values.extend(kept)
    elif field.message_type is not None:
        values.add()
    elif len(values) and roll < 0.85:
        place = rng.randrange(len(values))
        values[place] = _some_value(field, rng, values[place])
    else:
        values.append(_some_value(field, rng, 0))


def _mutate_list(messages: list[Any], rng: Random, others: Sequence[Any]) -> None:
    roll = rng.randrange(4)
    place = rng.randrange(len(messages) + 1)
    if roll == 0 and messages:
        del messages[rng.randrange(len(messages))]
    elif roll == 1 and messages:
        messages.insert(place, _copy(rng.choice(messages)))
    elif roll == 2 and len(messages) > 1:
        first, second = rng.sample(range(len(messages)), 2)
        messages[first], messages[second] = messages[second], messages[first]
    elif (other := rng.choice(others)) is not None:
        messages.insert(place, _copy(other))  # nothing may be its own donor: upb crashes


def _some_value(field: FieldDescriptor, rng: Random, near: Any) -> Any:
    kind = field.cpp_type
    if kind in _INTS:
        return some_int(rng, *_INTS[kind], near if isinstance(near, int) else 0)
    if kind in _FLOATS:
        value = some_float(rng)
        return value if kind == FieldDescriptor.CPPTYPE_DOUBLE or abs(value) < 3e38 or value != value else float("inf")
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(near or b"", rng)
    return some_text(rng, near or "")


def _some_part(message: Message, rng: Random) -> Message:
    """A message inside a message: the way down is chosen at every level, so that small parts come often, too."""
    while rng.random() < 0.8:
        fields = [(field, value) for field, value in message.ListFields() if field.message_type is not None]
        if not fields:
            break
        field, value = rng.choice(fields)
        message = rng.choice(value) if field.is_repeated else value
    return message


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _parsed(kind: type[Message], content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError:
        return None
