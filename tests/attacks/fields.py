"""Every field of a message, set to what only an attacker sends there: a walk over descriptors, which lists no field."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_INTEGERS: Final = {
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), (-(2**31), -1, 0, 2**31 - 1)),
    **dict.fromkeys(("INT64", "SINT64", "SFIXED64"), (-(2**63), -1, 0, 2**63 - 1)),
    **dict.fromkeys(("UINT32", "FIXED32"), (0, 2**32 - 1)),
    **dict.fromkeys(("UINT64", "FIXED64"), (0, 2**63, 2**64 - 1)),
}
_FLOATS: Final = {
    "DOUBLE": (float("nan"), float("inf"), -float("inf"), 5e-324, -1.0, 0.0, 1.7e308, -1.7e308),
    "FLOAT": (float("nan"), float("inf"), -float("inf"), 1e-45, -1.0, 0.0, 3.4e38, -3.4e38),
}
# The ends of each type's values; of texts, bytes and messages `_values` knows more. Enums are open: numbers that the
# contract does not have arrive as they are.
_ENDS: Final[dict[str, tuple[Any, ...]]] = {
    **_INTEGERS,
    **_FLOATS,
    "BOOL": (False, True),
    "ENUM": (0, 99, -1, 2**31 - 1),
    "STRING": ("",),
    "BYTES": (b"",),
}
_TYPE_NAMES: Final = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_")
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}

_Change = Callable[[Message], object]


class Honest(Protocol):
    """Honest messages, which fill what a change leaves alone."""

    def honest(self, descriptor: Descriptor) -> Message:
        """Returns an honest message of a type."""

    def held(self, field: FieldDescriptor) -> Descriptor | None:
        """Returns the type of the message that bytes hold; None: they hold none."""


class CannotFillError(Exception):
    """The walk has met a field that it does not know how to fill, or a message of which it has no honest one."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of what is too large.

    Attributes:
        n_bytes: Of a text, or of bytes.
        n_members: Of a list, or of a map.
        message_bytes: The largest message to make: a list ends when it has as many bytes.
    """

    n_bytes: int = 3_000_000
    n_members: int = 100_000
    message_bytes: int = 4_000_000


def spoilt(
    make: Callable[[], Message], world: Honest, sizes: Sizes, is_drawn: Callable[[], bool] = lambda: True
) -> Iterator[tuple[str, Message]]:
    """Yields honest messages with one field changed, and what was changed.

    Args:
        make: Makes an honest message, anew for each change.
        world: Has an honest message of every type that may be inside it, for what is absent.
        sizes: How large is too large.
        is_drawn: Says of each change whether it is made; every field is looked at.

    Raises:
        CannotFillError: There is a field of a type that is not known here.
    """
    for path in _paths(make().DESCRIPTOR, ()):
        *above, field = path
        name = ".".join(step.name for step in path)
        for what, change in _changes(field, world, sizes):
            if not is_drawn():
                continue
            message = copy.deepcopy(make())
            change(_reached(message, above, world))
            yield f"{name} {what}", message


def _paths(descriptor: Descriptor, above: tuple[FieldDescriptor, ...]) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yields the way to every field; a message inside one of its own type is not entered."""
    for field in descriptor.fields:
        path = (*above, field)
        yield path
        inside = field.message_type
        entered = {step.containing_type.full_name for step in path}
        if inside is not None and not inside.GetOptions().map_entry and inside.full_name not in entered:
            yield from _paths(inside, path)


def _reached(message: Message, above: list[FieldDescriptor], world: Honest) -> Message:
    for field in above:
        inside = getattr(message, field.name)
        if field.is_repeated:
            message = inside[0] if inside else inside.add()
            if not message.ByteSize():
                message.CopyFrom(world.honest(field.message_type))
        else:
            if not message.HasField(field.name):
                inside.CopyFrom(world.honest(field.message_type))
                inside.SetInParent()
            message = inside
    return message


def _changes(field: FieldDescriptor, world: Honest, sizes: Sizes) -> Iterator[tuple[str, _Change]]:
    def into(value: Any, *, is_list: bool) -> _Change:
        def change(message: Message) -> None:
            message.ClearField(field.name)
            if is_list:
                getattr(message, field.name).extend(value)
            elif isinstance(value, dict):
                getattr(message, field.name).update(value)
            elif field.message_type is not None:
                getattr(message, field.name).CopyFrom(value)
                getattr(message, field.name).SetInParent()
            else:
                setattr(message, field.name, value)

        return change

    yield "absent", lambda message: message.ClearField(field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield f"of {sizes.n_members} members", into(_entries(field, sizes), is_list=False)
        for text in _large(field.message_type.fields_by_name["value"], sizes):
            yield "with a large value", into({"k": text}, is_list=False)
        return
    for what, value in _values(field, world, sizes):
        if not field.is_repeated:
            yield what, into(value, is_list=False)
            continue
        yield f"[{what}]", into([value], is_list=True)
        n = min(sizes.n_members, sizes.message_bytes // _bytes_of(value))
        if n > 1:
            yield f"[{what}] * {n}", into([value] * n, is_list=True)


def _values(field: FieldDescriptor, world: Honest, sizes: Sizes) -> Iterator[tuple[str, Any]]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        one = world.honest(field.message_type)
        yield "honest", one
        yield "empty", type(one)()
        return
    for value in _ends(field):
        yield repr(value), value
    for value in _large(field, sizes):
        yield f"of {sizes.n_bytes} bytes", value
    if field.type == FieldDescriptor.TYPE_BYTES and (inside := world.held(field)) is not None:
        for what, message in spoilt(lambda: world.honest(inside), world, sizes):
            yield f"with {what}", message.SerializeToString()


def _ends(field: FieldDescriptor) -> tuple[Any, ...]:
    kind = _TYPE_NAMES[field.type]
    if kind not in _ENDS:
        raise CannotFillError(f"{field.full_name} is a {kind}, of which the walk has no ends; add them to _ENDS")
    return _ENDS[kind]


def _large(field: FieldDescriptor, sizes: Sizes) -> tuple[Any, ...]:
    return {"STRING": ("x" * sizes.n_bytes,), "BYTES": (b"x" * sizes.n_bytes,)}.get(_TYPE_NAMES[field.type], ())


def _entries(field: FieldDescriptor, sizes: Sizes) -> dict[Any, Any]:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    if key.type != FieldDescriptor.TYPE_STRING or value.message_type is not None:
        raise CannotFillError(f"{field.full_name} is no map from texts to plain values; teach _entries to fill it")
    return {f"k{number}": _ends(value)[0] for number in range(sizes.n_members)}


def _bytes_of(value: Any) -> int:
    if isinstance(value, Message):
        return value.ByteSize() + 5
    return len(value) + 5 if isinstance(value, str | bytes) else 10
