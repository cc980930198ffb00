from rollcast.v1 import space_pb2 as _space_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordingHeader(_message.Message):
    __slots__ = ("format", "protocol_version", "software_version", "substeps", "n_rollout_steps", "n_envs", "env_id", "played_by", "state_size", "frame_stack", "digest")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    N_ROLLOUT_STEPS_FIELD_NUMBER: _ClassVar[int]
    N_ENVS_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    PLAYED_BY_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    FRAME_STACK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    format: str
    protocol_version: int
    software_version: str
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    n_rollout_steps: int
    n_envs: int
    env_id: str
    played_by: str
    state_size: int
    frame_stack: int
    digest: int
    def __init__(self, format: _Optional[str] = ..., protocol_version: _Optional[int] = ..., software_version: _Optional[str] = ..., substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., n_rollout_steps: _Optional[int] = ..., n_envs: _Optional[int] = ..., env_id: _Optional[str] = ..., played_by: _Optional[str] = ..., state_size: _Optional[int] = ..., frame_stack: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...
