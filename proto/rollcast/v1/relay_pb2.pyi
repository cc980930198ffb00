from rollcast.v1 import rollout_pb2 as _rollout_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamBundlesRequest(_message.Message):
    __slots__ = ("open", "waiting", "parts", "digest", "number")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    open: _rollout_pb2.Relay
    waiting: _containers.RepeatedCompositeFieldContainer[_rollout_pb2.Relay]
    parts: _containers.RepeatedCompositeFieldContainer[UpwardPart]
    digest: int
    number: int
    def __init__(self, open: _Optional[_Union[_rollout_pb2.Relay, _Mapping]] = ..., waiting: _Optional[_Iterable[_Union[_rollout_pb2.Relay, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[UpwardPart, _Mapping]]] = ..., digest: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class UpwardPart(_message.Message):
    __slots__ = ("stream", "open", "message", "ended")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    stream: int
    open: _rollout_pb2.OpenStream
    message: bytes
    ended: StreamEnd
    def __init__(self, stream: _Optional[int] = ..., open: _Optional[_Union[_rollout_pb2.OpenStream, _Mapping]] = ..., message: _Optional[bytes] = ..., ended: _Optional[_Union[StreamEnd, _Mapping]] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("clean", "status")
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    clean: bool
    status: bytes
    def __init__(self, clean: _Optional[bool] = ..., status: _Optional[bytes] = ...) -> None: ...

class StreamBundlesResponse(_message.Message):
    __slots__ = ("parts", "learner_nonce", "digest", "number")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_NONCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[DownwardPart]
    learner_nonce: int
    digest: int
    number: int
    def __init__(self, parts: _Optional[_Iterable[_Union[DownwardPart, _Mapping]]] = ..., learner_nonce: _Optional[int] = ..., digest: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class DownwardPart(_message.Message):
    __slots__ = ("stream", "progress", "status")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    progress: _rollout_pb2.StreamRolloutsResponse
    status: bytes
    def __init__(self, stream: _Optional[int] = ..., progress: _Optional[_Union[_rollout_pb2.StreamRolloutsResponse, _Mapping]] = ..., status: _Optional[bytes] = ...) -> None: ...
