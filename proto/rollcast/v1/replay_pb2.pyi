from rollcast.v1 import space_pb2 as _space_pb2
from rollcast.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetReplayInfoRequest(_message.Message):
    __slots__ = ("substep_key",)
    SUBSTEP_KEY_FIELD_NUMBER: _ClassVar[int]
    substep_key: str
    def __init__(self, substep_key: _Optional[str] = ...) -> None: ...

class GetReplayInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: ReplayInfo
    def __init__(self, info: _Optional[_Union[ReplayInfo, _Mapping]] = ...) -> None: ...

class ReplayInfo(_message.Message):
    __slots__ = ("size", "capacity", "n_bytes", "inserted", "sampled", "ignored_updates", "min_size", "difference", "min_diff", "max_diff", "waiting", "substeps", "n_rollout_steps", "n_sample_steps", "entry_bytes")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    N_BYTES_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_UPDATES_FIELD_NUMBER: _ClassVar[int]
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_DIFF_FIELD_NUMBER: _ClassVar[int]
    MAX_DIFF_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    N_ROLLOUT_STEPS_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    size: int
    capacity: int
    n_bytes: int
    inserted: int
    sampled: int
    ignored_updates: int
    min_size: int
    difference: float
    min_diff: float
    max_diff: float
    waiting: _containers.RepeatedCompositeFieldContainer[ReplayWaiting]
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    n_rollout_steps: int
    n_sample_steps: int
    entry_bytes: int
    def __init__(self, size: _Optional[int] = ..., capacity: _Optional[int] = ..., n_bytes: _Optional[int] = ..., inserted: _Optional[int] = ..., sampled: _Optional[int] = ..., ignored_updates: _Optional[int] = ..., min_size: _Optional[int] = ..., difference: _Optional[float] = ..., min_diff: _Optional[float] = ..., max_diff: _Optional[float] = ..., waiting: _Optional[_Iterable[_Union[ReplayWaiting, _Mapping]]] = ..., substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., n_rollout_steps: _Optional[int] = ..., n_sample_steps: _Optional[int] = ..., entry_bytes: _Optional[int] = ...) -> None: ...

class ReplayWaiting(_message.Message):
    __slots__ = ("reason", "seconds", "who")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    reason: str
    seconds: float
    who: str
    def __init__(self, reason: _Optional[str] = ..., seconds: _Optional[float] = ..., who: _Optional[str] = ...) -> None: ...

class ReplayStatus(_message.Message):
    __slots__ = ("size", "capacity", "n_bytes", "inserted", "sampled", "min_size", "difference", "min_diff", "max_diff", "waiting")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    N_BYTES_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_DIFF_FIELD_NUMBER: _ClassVar[int]
    MAX_DIFF_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    size: int
    capacity: int
    n_bytes: int
    inserted: int
    sampled: int
    min_size: int
    difference: float
    min_diff: float
    max_diff: float
    waiting: _containers.RepeatedCompositeFieldContainer[ReplayWaiting]
    def __init__(self, size: _Optional[int] = ..., capacity: _Optional[int] = ..., n_bytes: _Optional[int] = ..., inserted: _Optional[int] = ..., sampled: _Optional[int] = ..., min_size: _Optional[int] = ..., difference: _Optional[float] = ..., min_diff: _Optional[float] = ..., max_diff: _Optional[float] = ..., waiting: _Optional[_Iterable[_Union[ReplayWaiting, _Mapping]]] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("batch_size", "n_batches", "timeout_s", "may_defer", "substep_key")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    N_BATCHES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MAY_DEFER_FIELD_NUMBER: _ClassVar[int]
    SUBSTEP_KEY_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    n_batches: int
    timeout_s: float
    may_defer: bool
    substep_key: str
    def __init__(self, batch_size: _Optional[int] = ..., n_batches: _Optional[int] = ..., timeout_s: _Optional[float] = ..., may_defer: _Optional[bool] = ..., substep_key: _Optional[str] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("part", "parts", "keys", "weights", "n_steps", "discount", "substeps", "reward", "terminated", "truncated", "valid", "final_index", "policy_version", "burn_in", "body")
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    N_STEPS_FIELD_NUMBER: _ClassVar[int]
    DISCOUNT_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    FINAL_INDEX_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    BURN_IN_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    part: int
    parts: int
    keys: _tensor_pb2.Tensor
    weights: _tensor_pb2.Tensor
    n_steps: _tensor_pb2.Tensor
    discount: _tensor_pb2.Tensor
    substeps: _containers.RepeatedCompositeFieldContainer[SampleSubstep]
    reward: _tensor_pb2.Tensor
    terminated: _tensor_pb2.Tensor
    truncated: _tensor_pb2.Tensor
    valid: _tensor_pb2.Tensor
    final_index: _tensor_pb2.Tensor
    policy_version: _tensor_pb2.Tensor
    burn_in: int
    body: bytes
    def __init__(self, part: _Optional[int] = ..., parts: _Optional[int] = ..., keys: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., weights: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., n_steps: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., discount: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., substeps: _Optional[_Iterable[_Union[SampleSubstep, _Mapping]]] = ..., reward: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., terminated: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., truncated: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., valid: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., final_index: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., policy_version: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., burn_in: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class SampleSubstep(_message.Message):
    __slots__ = ("key", "observation", "action", "next_observation", "log_prob", "final_observation", "initial_state", "previous_observation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    action: _tensor_pb2.Tensor
    next_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    log_prob: _tensor_pb2.Tensor
    final_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    initial_state: _tensor_pb2.Tensor
    previous_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    def __init__(self, key: _Optional[str] = ..., observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., action: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., next_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., log_prob: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., final_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., initial_state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., previous_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ...) -> None: ...

class UpdatePrioritiesRequest(_message.Message):
    __slots__ = ("keys", "priorities", "substep_key")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    SUBSTEP_KEY_FIELD_NUMBER: _ClassVar[int]
    keys: _tensor_pb2.Tensor
    priorities: _tensor_pb2.Tensor
    substep_key: str
    def __init__(self, keys: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., priorities: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., substep_key: _Optional[str] = ...) -> None: ...

class UpdatePrioritiesResponse(_message.Message):
    __slots__ = ("ignored",)
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    ignored: int
    def __init__(self, ignored: _Optional[int] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("substep_key",)
    SUBSTEP_KEY_FIELD_NUMBER: _ClassVar[int]
    substep_key: str
    def __init__(self, substep_key: _Optional[str] = ...) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
