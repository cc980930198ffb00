from rollcast.v1 import replay_pb2 as _replay_pb2
from rollcast.v1 import rollout_pb2 as _rollout_pb2
from rollcast.v1 import space_pb2 as _space_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_STARTING: _ClassVar[Phase]
    PHASE_TRAINING: _ClassVar[Phase]
    PHASE_PAUSED: _ClassVar[Phase]
    PHASE_STOPPING: _ClassVar[Phase]
    PHASE_FINISHED: _ClassVar[Phase]

class ActorState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTOR_STATE_UNSPECIFIED: _ClassVar[ActorState]
    ACTOR_STATE_JOINED: _ClassVar[ActorState]
    ACTOR_STATE_STREAMING: _ClassVar[ActorState]
    ACTOR_STATE_LOST: _ClassVar[ActorState]
    ACTOR_STATE_LEFT: _ClassVar[ActorState]
    ACTOR_STATE_FAILED: _ClassVar[ActorState]
    ACTOR_STATE_REFUSED: _ClassVar[ActorState]
PHASE_UNSPECIFIED: Phase
PHASE_STARTING: Phase
PHASE_TRAINING: Phase
PHASE_PAUSED: Phase
PHASE_STOPPING: Phase
PHASE_FINISHED: Phase
ACTOR_STATE_UNSPECIFIED: ActorState
ACTOR_STATE_JOINED: ActorState
ACTOR_STATE_STREAMING: ActorState
ACTOR_STATE_LOST: ActorState
ACTOR_STATE_LEFT: ActorState
ACTOR_STATE_FAILED: ActorState
ACTOR_STATE_REFUSED: ActorState

class LearnerStatus(_message.Message):
    __slots__ = ("phase", "waiting_for", "waiting_s", "env_steps", "seconds", "env_steps_per_second", "updates", "updates_per_second", "policy_version", "policy_lag_mean", "policy_lag_max", "queue_size", "queue_capacity", "actors_alive", "actors_expected", "episodes", "mean_return", "duplicate_rollouts", "rejected_rollouts", "run_dir", "waiting_fraction", "software_version", "algorithm", "stale_trajectories", "replay", "throttled", "evaluation", "dropped_episodes", "findings", "acts")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_LAG_MEAN_FIELD_NUMBER: _ClassVar[int]
    POLICY_LAG_MAX_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ACTORS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    ACTORS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    RUN_DIR_FIELD_NUMBER: _ClassVar[int]
    WAITING_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    STALE_TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_EPISODES_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    ACTS_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    waiting_for: str
    waiting_s: float
    env_steps: int
    seconds: float
    env_steps_per_second: float
    updates: int
    updates_per_second: float
    policy_version: int
    policy_lag_mean: float
    policy_lag_max: int
    queue_size: int
    queue_capacity: int
    actors_alive: int
    actors_expected: int
    episodes: int
    mean_return: float
    duplicate_rollouts: int
    rejected_rollouts: int
    run_dir: str
    waiting_fraction: float
    software_version: str
    algorithm: str
    stale_trajectories: int
    replay: _replay_pb2.ReplayStatus
    throttled: _containers.RepeatedCompositeFieldContainer[Throttled]
    evaluation: EvaluationStatus
    dropped_episodes: int
    findings: _containers.RepeatedCompositeFieldContainer[LearningFinding]
    acts: ActStatus
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., waiting_for: _Optional[str] = ..., waiting_s: _Optional[float] = ..., env_steps: _Optional[int] = ..., seconds: _Optional[float] = ..., env_steps_per_second: _Optional[float] = ..., updates: _Optional[int] = ..., updates_per_second: _Optional[float] = ..., policy_version: _Optional[int] = ..., policy_lag_mean: _Optional[float] = ..., policy_lag_max: _Optional[int] = ..., queue_size: _Optional[int] = ..., queue_capacity: _Optional[int] = ..., actors_alive: _Optional[int] = ..., actors_expected: _Optional[int] = ..., episodes: _Optional[int] = ..., mean_return: _Optional[float] = ..., duplicate_rollouts: _Optional[int] = ..., rejected_rollouts: _Optional[int] = ..., run_dir: _Optional[str] = ..., waiting_fraction: _Optional[float] = ..., software_version: _Optional[str] = ..., algorithm: _Optional[str] = ..., stale_trajectories: _Optional[int] = ..., replay: _Optional[_Union[_replay_pb2.ReplayStatus, _Mapping]] = ..., throttled: _Optional[_Iterable[_Union[Throttled, _Mapping]]] = ..., evaluation: _Optional[_Union[EvaluationStatus, _Mapping]] = ..., dropped_episodes: _Optional[int] = ..., findings: _Optional[_Iterable[_Union[LearningFinding, _Mapping]]] = ..., acts: _Optional[_Union[ActStatus, _Mapping]] = ...) -> None: ...

class ActStatus(_message.Message):
    __slots__ = ("calls", "observations", "forward_passes", "p50_s", "p99_s")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_PASSES_FIELD_NUMBER: _ClassVar[int]
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    calls: int
    observations: int
    forward_passes: int
    p50_s: float
    p99_s: float
    def __init__(self, calls: _Optional[int] = ..., observations: _Optional[int] = ..., forward_passes: _Optional[int] = ..., p50_s: _Optional[float] = ..., p99_s: _Optional[float] = ...) -> None: ...

class LearningFinding(_message.Message):
    __slots__ = ("rule", "what", "advice")
    RULE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    rule: str
    what: str
    advice: str
    def __init__(self, rule: _Optional[str] = ..., what: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...

class EvaluationStatus(_message.Message):
    __slots__ = ("evaluators_alive", "evaluations", "skipped", "policy_version", "env_steps", "mean_return", "ci_low", "ci_high", "best_policy_version", "best_mean_return", "without_improvement", "last_error")
    EVALUATORS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    CI_LOW_FIELD_NUMBER: _ClassVar[int]
    CI_HIGH_FIELD_NUMBER: _ClassVar[int]
    BEST_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    BEST_MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    evaluators_alive: int
    evaluations: int
    skipped: int
    policy_version: int
    env_steps: int
    mean_return: float
    ci_low: float
    ci_high: float
    best_policy_version: int
    best_mean_return: float
    without_improvement: int
    last_error: str
    def __init__(self, evaluators_alive: _Optional[int] = ..., evaluations: _Optional[int] = ..., skipped: _Optional[int] = ..., policy_version: _Optional[int] = ..., env_steps: _Optional[int] = ..., mean_return: _Optional[float] = ..., ci_low: _Optional[float] = ..., ci_high: _Optional[float] = ..., best_policy_version: _Optional[int] = ..., best_mean_return: _Optional[float] = ..., without_improvement: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class Throttled(_message.Message):
    __slots__ = ("who", "limit", "times", "idle_s")
    WHO_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    who: str
    limit: str
    times: int
    idle_s: float
    def __init__(self, who: _Optional[str] = ..., limit: _Optional[str] = ..., times: _Optional[int] = ..., idle_s: _Optional[float] = ...) -> None: ...

class DescribeLearnerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeLearnerResponse(_message.Message):
    __slots__ = ("description",)
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    description: LearnerDescription
    def __init__(self, description: _Optional[_Union[LearnerDescription, _Mapping]] = ...) -> None: ...

class LearnerDescription(_message.Message):
    __slots__ = ("substeps", "policy", "n_rollout_steps", "batch_size", "n_envs", "algorithm", "protocol_version", "software_version", "limits")
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    N_ROLLOUT_STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    N_ENVS_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    policy: _rollout_pb2.PolicySpec
    n_rollout_steps: int
    batch_size: int
    n_envs: int
    algorithm: str
    protocol_version: int
    software_version: str
    limits: LearnerLimits
    def __init__(self, substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., policy: _Optional[_Union[_rollout_pb2.PolicySpec, _Mapping]] = ..., n_rollout_steps: _Optional[int] = ..., batch_size: _Optional[int] = ..., n_envs: _Optional[int] = ..., algorithm: _Optional[str] = ..., protocol_version: _Optional[int] = ..., software_version: _Optional[str] = ..., limits: _Optional[_Union[LearnerLimits, _Mapping]] = ...) -> None: ...

class LearnerLimits(_message.Message):
    __slots__ = ("max_actors", "max_connections", "max_streams_per_connection", "max_message_bytes", "max_rollout_bytes", "max_bytes_in_flight", "calls_per_second", "calls_per_second_per_host", "stalled_stream_s", "join_lease_s", "request_s", "max_half_open_calls", "max_half_open_calls_per_host")
    MAX_ACTORS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_PER_CONNECTION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ROLLOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CALLS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CALLS_PER_SECOND_PER_HOST_FIELD_NUMBER: _ClassVar[int]
    STALLED_STREAM_S_FIELD_NUMBER: _ClassVar[int]
    JOIN_LEASE_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_S_FIELD_NUMBER: _ClassVar[int]
    MAX_HALF_OPEN_CALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_HALF_OPEN_CALLS_PER_HOST_FIELD_NUMBER: _ClassVar[int]
    max_actors: int
    max_connections: int
    max_streams_per_connection: int
    max_message_bytes: int
    max_rollout_bytes: int
    max_bytes_in_flight: int
    calls_per_second: float
    calls_per_second_per_host: float
    stalled_stream_s: float
    join_lease_s: float
    request_s: float
    max_half_open_calls: int
    max_half_open_calls_per_host: int
    def __init__(self, max_actors: _Optional[int] = ..., max_connections: _Optional[int] = ..., max_streams_per_connection: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_rollout_bytes: _Optional[int] = ..., max_bytes_in_flight: _Optional[int] = ..., calls_per_second: _Optional[float] = ..., calls_per_second_per_host: _Optional[float] = ..., stalled_stream_s: _Optional[float] = ..., join_lease_s: _Optional[float] = ..., request_s: _Optional[float] = ..., max_half_open_calls: _Optional[int] = ..., max_half_open_calls_per_host: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: LearnerStatus
    def __init__(self, status: _Optional[_Union[LearnerStatus, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval_s",)
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    def __init__(self, interval_s: _Optional[float] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: LearnerStatus
    def __init__(self, status: _Optional[_Union[LearnerStatus, _Mapping]] = ...) -> None: ...

class ListActorsRequest(_message.Message):
    __slots__ = ("min_slot",)
    MIN_SLOT_FIELD_NUMBER: _ClassVar[int]
    min_slot: int
    def __init__(self, min_slot: _Optional[int] = ...) -> None: ...

class ListActorsResponse(_message.Message):
    __slots__ = ("actors", "next_slot")
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SLOT_FIELD_NUMBER: _ClassVar[int]
    actors: _containers.RepeatedCompositeFieldContainer[ActorInfo]
    next_slot: int
    def __init__(self, actors: _Optional[_Iterable[_Union[ActorInfo, _Mapping]]] = ..., next_slot: _Optional[int] = ...) -> None: ...

class ActorInfo(_message.Message):
    __slots__ = ("actor_id", "slot", "incarnation", "state", "peer", "n_envs", "rollouts", "env_steps", "policy_version", "idle_s", "software_version", "last_error", "acting_state", "applied_policy_version", "env_steps_per_second", "answer_p50_s", "answer_p99_s", "via", "cpu_cores", "memory_bytes")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    N_ENVS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    ACTING_STATE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ANSWER_P50_S_FIELD_NUMBER: _ClassVar[int]
    ANSWER_P99_S_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    slot: int
    incarnation: int
    state: ActorState
    peer: str
    n_envs: int
    rollouts: int
    env_steps: int
    policy_version: int
    idle_s: float
    software_version: str
    last_error: str
    acting_state: _rollout_pb2.ActingState
    applied_policy_version: int
    env_steps_per_second: float
    answer_p50_s: float
    answer_p99_s: float
    via: _containers.RepeatedScalarFieldContainer[str]
    cpu_cores: float
    memory_bytes: int
    def __init__(self, actor_id: _Optional[str] = ..., slot: _Optional[int] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[ActorState, str]] = ..., peer: _Optional[str] = ..., n_envs: _Optional[int] = ..., rollouts: _Optional[int] = ..., env_steps: _Optional[int] = ..., policy_version: _Optional[int] = ..., idle_s: _Optional[float] = ..., software_version: _Optional[str] = ..., last_error: _Optional[str] = ..., acting_state: _Optional[_Union[_rollout_pb2.ActingState, str]] = ..., applied_policy_version: _Optional[int] = ..., env_steps_per_second: _Optional[float] = ..., answer_p50_s: _Optional[float] = ..., answer_p99_s: _Optional[float] = ..., via: _Optional[_Iterable[str]] = ..., cpu_cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ("path", "policy_version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    policy_version: int
    def __init__(self, path: _Optional[str] = ..., policy_version: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
