from rollcast.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PolicyEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POLICY_ENCODING_UNSPECIFIED: _ClassVar[PolicyEncoding]
    POLICY_ENCODING_BFLOAT16: _ClassVar[PolicyEncoding]
    POLICY_ENCODING_DELTA: _ClassVar[PolicyEncoding]
POLICY_ENCODING_UNSPECIFIED: PolicyEncoding
POLICY_ENCODING_BFLOAT16: PolicyEncoding
POLICY_ENCODING_DELTA: PolicyEncoding

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("chunk", "digest")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    chunk: PolicyChunk
    digest: int
    def __init__(self, chunk: _Optional[_Union[PolicyChunk, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...

class SubscribePolicyRequest(_message.Message):
    __slots__ = ("after_version", "evaluator_id", "incarnation", "actor_id", "encodings", "base_digest")
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    after_version: int
    evaluator_id: str
    incarnation: int
    actor_id: str
    encodings: _containers.RepeatedScalarFieldContainer[PolicyEncoding]
    base_digest: bytes
    def __init__(self, after_version: _Optional[int] = ..., evaluator_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., actor_id: _Optional[str] = ..., encodings: _Optional[_Iterable[_Union[PolicyEncoding, str]]] = ..., base_digest: _Optional[bytes] = ...) -> None: ...

class SubscribePolicyResponse(_message.Message):
    __slots__ = ("chunk", "digest")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    chunk: PolicyChunk
    digest: int
    def __init__(self, chunk: _Optional[_Union[PolicyChunk, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...

class PolicyChunk(_message.Message):
    __slots__ = ("version", "index", "count", "total_bytes", "digest", "payload", "encoding", "base_version", "file_bytes", "file_digest", "progress")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    version: int
    index: int
    count: int
    total_bytes: int
    digest: bytes
    payload: bytes
    encoding: PolicyEncoding
    base_version: int
    file_bytes: int
    file_digest: bytes
    progress: float
    def __init__(self, version: _Optional[int] = ..., index: _Optional[int] = ..., count: _Optional[int] = ..., total_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., encoding: _Optional[_Union[PolicyEncoding, str]] = ..., base_version: _Optional[int] = ..., file_bytes: _Optional[int] = ..., file_digest: _Optional[bytes] = ..., progress: _Optional[float] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("observation", "deterministic", "substep_key", "state", "previous_observation")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    SUBSTEP_KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    deterministic: bool
    substep_key: str
    state: _tensor_pb2.Tensor
    previous_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    def __init__(self, observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., deterministic: _Optional[bool] = ..., substep_key: _Optional[str] = ..., state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., previous_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ...) -> None: ...

class ActResponse(_message.Message):
    __slots__ = ("action", "policy_version", "state")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    action: _tensor_pb2.Tensor
    policy_version: int
    state: _tensor_pb2.Tensor
    def __init__(self, action: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., policy_version: _Optional[int] = ..., state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
