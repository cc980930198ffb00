from rollcast.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Space(_message.Message):
    __slots__ = ("box", "discrete", "multi_binary", "multi_discrete", "dict", "tuple")
    BOX_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_FIELD_NUMBER: _ClassVar[int]
    MULTI_BINARY_FIELD_NUMBER: _ClassVar[int]
    MULTI_DISCRETE_FIELD_NUMBER: _ClassVar[int]
    DICT_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    box: Box
    discrete: Discrete
    multi_binary: MultiBinary
    multi_discrete: MultiDiscrete
    dict: DictSpace
    tuple: TupleSpace
    def __init__(self, box: _Optional[_Union[Box, _Mapping]] = ..., discrete: _Optional[_Union[Discrete, _Mapping]] = ..., multi_binary: _Optional[_Union[MultiBinary, _Mapping]] = ..., multi_discrete: _Optional[_Union[MultiDiscrete, _Mapping]] = ..., dict: _Optional[_Union[DictSpace, _Mapping]] = ..., tuple: _Optional[_Union[TupleSpace, _Mapping]] = ...) -> None: ...

class Box(_message.Message):
    __slots__ = ("low", "high", "shape")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    low: _tensor_pb2.Tensor
    high: _tensor_pb2.Tensor
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, low: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., high: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Discrete(_message.Message):
    __slots__ = ("n", "start")
    N_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    n: int
    start: int
    def __init__(self, n: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class MultiBinary(_message.Message):
    __slots__ = ("shape",)
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ...) -> None: ...

class MultiDiscrete(_message.Message):
    __slots__ = ("nvec", "start")
    NVEC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    nvec: _tensor_pb2.Tensor
    start: _tensor_pb2.Tensor
    def __init__(self, nvec: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., start: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class DictSpace(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[NamedSpace]
    def __init__(self, members: _Optional[_Iterable[_Union[NamedSpace, _Mapping]]] = ...) -> None: ...

class NamedSpace(_message.Message):
    __slots__ = ("key", "space")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    key: str
    space: Space
    def __init__(self, key: _Optional[str] = ..., space: _Optional[_Union[Space, _Mapping]] = ...) -> None: ...

class TupleSpace(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Space]
    def __init__(self, members: _Optional[_Iterable[_Union[Space, _Mapping]]] = ...) -> None: ...

class SubstepSpaces(_message.Message):
    __slots__ = ("key", "observation", "action", "n_agents")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    N_AGENTS_FIELD_NUMBER: _ClassVar[int]
    key: str
    observation: Space
    action: Space
    n_agents: int
    def __init__(self, key: _Optional[str] = ..., observation: _Optional[_Union[Space, _Mapping]] = ..., action: _Optional[_Union[Space, _Mapping]] = ..., n_agents: _Optional[int] = ...) -> None: ...
