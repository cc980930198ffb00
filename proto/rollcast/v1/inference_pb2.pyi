from rollcast.v1 import rollout_pb2 as _rollout_pb2
from rollcast.v1 import space_pb2 as _space_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InferRequest(_message.Message):
    __slots__ = ("network", "question", "digest")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    network: InferenceNetwork
    question: InferenceQuestion
    digest: int
    def __init__(self, network: _Optional[_Union[InferenceNetwork, _Mapping]] = ..., question: _Optional[_Union[InferenceQuestion, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...

class InferenceNetwork(_message.Message):
    __slots__ = ("protocol", "substeps", "policy")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    policy: _rollout_pb2.PolicySpec
    def __init__(self, protocol: _Optional[int] = ..., substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., policy: _Optional[_Union[_rollout_pb2.PolicySpec, _Mapping]] = ...) -> None: ...

class InferenceQuestion(_message.Message):
    __slots__ = ("policy_version", "weights_digest", "substep", "n", "observation", "state")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SUBSTEP_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    weights_digest: bytes
    substep: int
    n: int
    observation: _containers.RepeatedScalarFieldContainer[bytes]
    state: bytes
    def __init__(self, policy_version: _Optional[int] = ..., weights_digest: _Optional[bytes] = ..., substep: _Optional[int] = ..., n: _Optional[int] = ..., observation: _Optional[_Iterable[bytes]] = ..., state: _Optional[bytes] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("policy_version", "parameters", "state", "digest")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    parameters: bytes
    state: bytes
    digest: int
    def __init__(self, policy_version: _Optional[int] = ..., parameters: _Optional[bytes] = ..., state: _Optional[bytes] = ..., digest: _Optional[int] = ...) -> None: ...
