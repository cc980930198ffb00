"""Encodes and decodes spaces, with limits on the spaces that a peer may send."""

import math
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from google.protobuf import json_format
from gymnasium import spaces
from numpy.typing import NDArray

from rollcast.services.errors import InvalidInputError, InvalidSpaceError
from rollcast.services.limits.limits import (
    MAX_AGENTS,
    MAX_KEY_LENGTH,
    MAX_RANK,
    MAX_SPACE_DEPTH,
    MAX_SPACE_ELEMENTS,
    MAX_SPACE_LEAVES,
)
from rollcast.services.limits.texts import quoted, quoted_names
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces, describe_space, space_leaves
from rollcast.services.wire.tensors import tensor_from_proto, tensor_header, tensor_to_proto
from rollcast.v1 import space_pb2, tensor_pb2


def space_to_proto(space: gymnasium.Space[Any]) -> space_pb2.Space:
    """Encodes a space.

    Args:
        space: Box, Discrete, MultiBinary, MultiDiscrete, or Dict and Tuple of them.

    Returns:
        The space. Members of a Dict keep their order, and a constant bound of a Box becomes a scalar.

    Raises:
        InvalidSpaceError: The kind of space is not supported, or a Discrete's dtype is not int64.
        InvalidTensorError: A Box has a dtype that is not on the whitelist.
    """
    space_leaves(space)
    return _encode(space)


def space_from_proto(proto: space_pb2.Space, *, what: str = "the space") -> gymnasium.Space[Any]:
    """Decodes a space.

    Args:
        proto: The space.
        what: The description of the space in messages.

    Raises:
        InvalidSpaceError: The space is malformed, deeper than 16, or has more than 1024 leaves or 2**23 elements.
        InvalidTensorError: A bound is malformed.
    """
    return _Decoder().decode(proto, what, 0)


def environment_spaces_to_proto(environment: EnvironmentSpaces) -> list[space_pb2.SubstepSpaces]:
    """Encodes the spaces of an environment, one message for each substep, in order.

    Args:
        environment: The spaces by substep key.

    Raises:
        InvalidSpaceError: A space is not supported.
        InvalidTensorError: A Box has a dtype that is not on the whitelist.
    """
    return [
        space_pb2.SubstepSpaces(
            key=key,
            observation=space_to_proto(substep.observation),
            action=space_to_proto(substep.action),
            # Omitted for one agent, as in messages of flat environments.
            n_agents=substep.n_agents if substep.n_agents > 1 else 0,
        )
        for key, substep in environment.items()
    ]


def check_spaces_travel(environment: EnvironmentSpaces) -> None:
    """Refuses spaces that a learner would refuse at Join, so that an actor fails at its start.

    Args:
        environment: The spaces by substep key.

    Raises:
        InvalidSpaceError: The spaces exceed a limit, or have a kind or dtype that the wire does not support.
        InvalidTensorError: A Box has a dtype that is not on the whitelist.
    """
    environment_spaces_from_proto(environment_spaces_to_proto(environment))


def environment_spaces_from_proto(protos: Iterable[space_pb2.SubstepSpaces]) -> dict[str, SubstepSpaces]:
    """Decodes the spaces of an environment.

    Args:
        protos: One message for each substep.

    Returns:
        The spaces by substep key, in order.

    Raises:
        InvalidSpaceError: There is no substep, two substeps have the same key, or a space is malformed or exceeds a
            limit. Limits apply to all substeps together.
        InvalidTensorError: A bound is malformed.
    """
    decoder = _Decoder()
    environment: dict[str, SubstepSpaces] = {}
    for proto in protos:
        if not proto.key or "/" in proto.key or proto.key in environment:
            raise InvalidSpaceError(
                f"the substep key {quoted(proto.key)} cannot be used; expected non-empty keys without '/', each once"
            )
        _check_length(proto.key, "the spaces")
        environment[proto.key] = SubstepSpaces(
            observation=decoder.decode(proto.observation, f"{proto.key}/observation", 0),
            action=decoder.decode(proto.action, f"{proto.key}/action", 0),
            n_agents=max(proto.n_agents, 1),
        )
        if proto.n_agents > MAX_AGENTS:
            raise InvalidSpaceError(
                f"the substep {proto.key!r} has {proto.n_agents} agents; expected at most {MAX_AGENTS}; divide them "
                "among several substeps",
                limit="max_agents",
            )
    if not environment:
        raise InvalidSpaceError("there is no substep; expected at least one; a flat environment has one, with key '0'")
    return environment


def environment_spaces_to_json(environment: EnvironmentSpaces) -> list[dict[str, Any]]:
    """Converts an environment's spaces to a list of `rollcast.v1.SubstepSpaces` in protobuf's JSON format.

    Args:
        environment: The spaces by substep key.

    Raises:
        InvalidSpaceError: A space is not supported.
        InvalidTensorError: A Box has a dtype that is not on the whitelist.
    """
    return [json_format.MessageToDict(proto) for proto in environment_spaces_to_proto(environment)]


def environment_spaces_from_json(substeps: Iterable[Any]) -> dict[str, SubstepSpaces]:
    """Converts the spaces of an environment back from JSON.

    Args:
        substeps: The result of `environment_spaces_to_json`, from a file that may be untrusted.

    Raises:
        InvalidSpaceError: The JSON is malformed, or exceeds a limit of `environment_spaces_from_proto`.
        InvalidTensorError: A bound is malformed.
    """
    protos = []
    for substep in substeps:
        if not isinstance(substep, dict):
            raise InvalidSpaceError(f"a substep is {substep!r:.80}; expected an object with its spaces")
        try:
            protos.append(json_format.ParseDict(substep, space_pb2.SubstepSpaces()))
        except json_format.ParseError as error:
            problem = " ".join(str(error).split())
            raise InvalidSpaceError(f"a substep cannot be read: {problem}; expected the JSON of its spaces") from error
    return environment_spaces_from_proto(protos)


def _encode(space: gymnasium.Space[Any]) -> space_pb2.Space:
    if isinstance(space, spaces.Dict):
        named = [space_pb2.NamedSpace(key=key, space=_encode(member)) for key, member in space.spaces.items()]
        return space_pb2.Space(dict=space_pb2.DictSpace(members=named))
    if isinstance(space, spaces.Tuple):
        return space_pb2.Space(tuple=space_pb2.TupleSpace(members=[_encode(member) for member in space.spaces]))
    if isinstance(space, spaces.Box):
        low, high = (tensor_to_proto(_shortest(bound), what=describe_space(space)) for bound in (space.low, space.high))
        return space_pb2.Space(box=space_pb2.Box(low=low, high=high, shape=space.shape))
    if isinstance(space, spaces.Discrete):
        if space.dtype != np.int64:
            raise InvalidSpaceError(
                f"{describe_space(space)} has dtype {space.dtype}; expected int64, the only supported dtype; make it "
                "with gymnasium's default dtype"
            )
        return space_pb2.Space(discrete=space_pb2.Discrete(n=int(space.n), start=int(space.start)))
    if isinstance(space, spaces.MultiBinary):
        return space_pb2.Space(multi_binary=space_pb2.MultiBinary(shape=space.shape))
    assert isinstance(space, spaces.MultiDiscrete)  # space_leaves has refused everything else
    multi_discrete = space_pb2.MultiDiscrete(nvec=tensor_to_proto(space.nvec))
    if np.any(space.start):
        multi_discrete.start.CopyFrom(tensor_to_proto(space.start))
    return space_pb2.Space(multi_discrete=multi_discrete)


def _shortest(bound: NDArray[Any]) -> NDArray[Any]:
    """Returns a constant bound as a scalar, because the full bounds of an image take many kilobytes."""
    return bound.reshape(-1)[:1].reshape(()) if bound.size and np.all(bound == bound.flat[0]) else bound


class _Decoder:
    """Decodes spaces and counts their elements. The limits apply to all spaces of a message together."""

    def __init__(self) -> None:
        self._n_leaves = 0
        self._n_elements = 0

    def decode(self, proto: space_pb2.Space, what: str, depth: int) -> gymnasium.Space[Any]:
        if depth > MAX_SPACE_DEPTH:
            raise InvalidSpaceError(
                f"{what} is nested deeper than {MAX_SPACE_DEPTH}; expected less; flatten the space",
                limit="max_space_depth",
            )
        kind = proto.WhichOneof("kind")
        if kind == "dict":
            keys = [member.key for member in proto.dict.members]
            if not keys or len(set(keys)) != len(keys) or any(not key or "/" in key for key in keys):
                raise InvalidSpaceError(
                    f"{what} is a Dict with keys {quoted_names(keys)}; expected at least one, non-empty, without '/', "
                    "each once"
                )
            for key in keys:
                _check_length(key, what)
            named = [(m.key, self.decode(m.space, f"{what}/{m.key}", depth + 1)) for m in proto.dict.members]
            return spaces.Dict(named)  # a list: from a mapping, gymnasium would sort the keys
        if kind == "tuple":
            if not proto.tuple.members:
                raise InvalidSpaceError(f"{what} is an empty Tuple; expected at least one member; remove it")
            return spaces.Tuple([self.decode(m, f"{what}/{i}", depth + 1) for i, m in enumerate(proto.tuple.members)])
        try:
            return self._decode_leaf(proto, kind, what)
        except InvalidInputError:
            raise
        except (ValueError, TypeError, AssertionError, OverflowError) as error:  # from gymnasium's constructors
            raise InvalidSpaceError(f"{what} is not a valid {kind}: {error}; see rollcast.v1.Space") from error

    def _decode_leaf(self, proto: space_pb2.Space, kind: str | None, what: str) -> gymnasium.Space[Any]:
        if kind == "box":
            shape = self._count(proto.box.shape, what)
            dtype, _, _ = tensor_header(proto.box.low, what=f"the lower bound of {what}")
            low = _bound(proto.box.low, dtype, shape, f"the lower bound of {what}")
            high = _bound(proto.box.high, dtype, shape, f"the upper bound of {what}")
            if np.any(np.isnan(low)) or np.any(np.isnan(high)) or not np.all(low <= high):
                raise InvalidSpaceError(f"{what} is a Box whose bounds are not low <= high; correct the bounds")
            return spaces.Box(low=low, high=high, shape=shape, dtype=dtype.type)
        if kind == "discrete":
            self._count((), what)
            n, first = proto.discrete.n, proto.discrete.start
            if n < 1 or first + n > 1 << 63:
                raise InvalidSpaceError(f"{what} is Discrete with n {n}, start {first}; expected n >= 1 within int64")
            return spaces.Discrete(n, start=first)
        if kind == "multi_binary":
            shape = self._count(proto.multi_binary.shape, what)
            if not shape:
                raise InvalidSpaceError(f"{what} is MultiBinary without a shape; expected at least one dimension")
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        if kind == "multi_discrete":
            shape = self._count(proto.multi_discrete.nvec.shape, what)
            nvec = tensor_from_proto(proto.multi_discrete.nvec, what=f"nvec of {what}")
            start: NDArray[Any] | None = None
            if proto.multi_discrete.HasField("start"):
                start = tensor_from_proto(
                    proto.multi_discrete.start, dtype=nvec.dtype, shape=shape, what=f"start of {what}"
                )
            return spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start)
        raise InvalidSpaceError(f"{what} has no known kind; expected one of rollcast.v1.Space; set it")

    def _count(self, shape: Iterable[int], what: str) -> tuple[int, ...]:
        dimensions = tuple(shape)
        if len(dimensions) > MAX_RANK or any(dimension < 0 for dimension in dimensions):
            raise InvalidSpaceError(
                f"{what} has shape {list(dimensions[:40])}; expected at most {MAX_RANK} dimensions, none negative",
                limit="max_rank" if len(dimensions) > MAX_RANK else "",
            )
        # Only after this check, because the product of 100,000 dimensions takes minutes, in which no other thread runs.
        self._n_leaves += 1
        self._n_elements += math.prod(dimensions)
        if self._n_elements > MAX_SPACE_ELEMENTS or self._n_leaves > MAX_SPACE_LEAVES:
            raise InvalidSpaceError(
                f"with {what} the spaces have {self._n_elements} elements in {self._n_leaves} leaves; expected at most "
                f"{MAX_SPACE_ELEMENTS} in {MAX_SPACE_LEAVES}; make the observations smaller",
                limit="max_space_leaves" if self._n_leaves > MAX_SPACE_LEAVES else "max_space_elements",
            )
        return dimensions


def _check_length(key: str, what: str) -> None:
    if len(key) > MAX_KEY_LENGTH:
        raise InvalidSpaceError(
            f"{what} have a key of {len(key)} characters, {quoted(key)}; expected at most {MAX_KEY_LENGTH}; shorten it",
            limit="max_key_length",
        )


def _bound(proto: tensor_pb2.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    expected = () if not proto.shape else shape
    return np.broadcast_to(tensor_from_proto(proto, dtype=dtype, shape=expected, what=what), shape)
