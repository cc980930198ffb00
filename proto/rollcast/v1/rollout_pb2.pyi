from rollcast.v1 import policy_pb2 as _policy_pb2
from rollcast.v1 import space_pb2 as _space_pb2
from rollcast.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActorRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTOR_ROLE_UNSPECIFIED: _ClassVar[ActorRole]
    ACTOR_ROLE_EVALUATE: _ClassVar[ActorRole]

class EvaluationActions(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATION_ACTIONS_UNSPECIFIED: _ClassVar[EvaluationActions]
    EVALUATION_ACTIONS_DRAWN: _ClassVar[EvaluationActions]
    EVALUATION_ACTIONS_BOTH: _ClassVar[EvaluationActions]

class StatisticReduction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATISTIC_REDUCTION_UNSPECIFIED: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_MEAN: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_STD: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_MIN: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_MAX: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_SUM: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_COUNT: _ClassVar[StatisticReduction]
    STATISTIC_REDUCTION_MEDIAN: _ClassVar[StatisticReduction]

class ActingState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTING_STATE_UNSPECIFIED: _ClassVar[ActingState]
    ACTING_STATE_CONNECTING: _ClassVar[ActingState]
    ACTING_STATE_ACTING: _ClassVar[ActingState]
    ACTING_STATE_SENDING: _ClassVar[ActingState]
    ACTING_STATE_WAITING_FOR_CREDIT: _ClassVar[ActingState]
    ACTING_STATE_WAITING_FOR_POLICY: _ClassVar[ActingState]
    ACTING_STATE_LOADING_POLICY: _ClassVar[ActingState]
ACTOR_ROLE_UNSPECIFIED: ActorRole
ACTOR_ROLE_EVALUATE: ActorRole
EVALUATION_ACTIONS_UNSPECIFIED: EvaluationActions
EVALUATION_ACTIONS_DRAWN: EvaluationActions
EVALUATION_ACTIONS_BOTH: EvaluationActions
STATISTIC_REDUCTION_UNSPECIFIED: StatisticReduction
STATISTIC_REDUCTION_MEAN: StatisticReduction
STATISTIC_REDUCTION_STD: StatisticReduction
STATISTIC_REDUCTION_MIN: StatisticReduction
STATISTIC_REDUCTION_MAX: StatisticReduction
STATISTIC_REDUCTION_SUM: StatisticReduction
STATISTIC_REDUCTION_COUNT: StatisticReduction
STATISTIC_REDUCTION_MEDIAN: StatisticReduction
ACTING_STATE_UNSPECIFIED: ActingState
ACTING_STATE_CONNECTING: ActingState
ACTING_STATE_ACTING: ActingState
ACTING_STATE_SENDING: ActingState
ACTING_STATE_WAITING_FOR_CREDIT: ActingState
ACTING_STATE_WAITING_FOR_POLICY: ActingState
ACTING_STATE_LOADING_POLICY: ActingState

class JoinRequest(_message.Message):
    __slots__ = ("actor_id", "process_nonce", "protocol_version", "software_version", "substeps", "n_envs", "network", "incarnation", "acknowledged_sequence", "role", "follows_redirect", "plays_by_clock", "digest", "via")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    N_ENVS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_REDIRECT_FIELD_NUMBER: _ClassVar[int]
    PLAYS_BY_CLOCK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    process_nonce: int
    protocol_version: int
    software_version: str
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    n_envs: int
    network: str
    incarnation: int
    acknowledged_sequence: int
    role: ActorRole
    follows_redirect: bool
    plays_by_clock: bool
    digest: int
    via: _containers.RepeatedCompositeFieldContainer[Relay]
    def __init__(self, actor_id: _Optional[str] = ..., process_nonce: _Optional[int] = ..., protocol_version: _Optional[int] = ..., software_version: _Optional[str] = ..., substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., n_envs: _Optional[int] = ..., network: _Optional[str] = ..., incarnation: _Optional[int] = ..., acknowledged_sequence: _Optional[int] = ..., role: _Optional[_Union[ActorRole, str]] = ..., follows_redirect: _Optional[bool] = ..., plays_by_clock: _Optional[bool] = ..., digest: _Optional[int] = ..., via: _Optional[_Iterable[_Union[Relay, _Mapping]]] = ...) -> None: ...

class Relay(_message.Message):
    __slots__ = ("relay_id", "nonce")
    RELAY_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    relay_id: str
    nonce: int
    def __init__(self, relay_id: _Optional[str] = ..., nonce: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("actor_id", "slot", "incarnation", "acknowledged_sequence", "n_rollout_steps", "env_seed", "agent_seed", "policy", "max_message_bytes", "n_envs", "learner_nonce", "awaiting_s", "policy_version", "digest", "substeps", "evaluation", "activity_interval_s", "learner_address", "report_with_rollout")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    N_ROLLOUT_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENV_SEED_FIELD_NUMBER: _ClassVar[int]
    AGENT_SEED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    N_ENVS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_NONCE_FIELD_NUMBER: _ClassVar[int]
    AWAITING_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPORT_WITH_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    slot: int
    incarnation: int
    acknowledged_sequence: int
    n_rollout_steps: int
    env_seed: int
    agent_seed: int
    policy: PolicySpec
    max_message_bytes: int
    n_envs: int
    learner_nonce: int
    awaiting_s: float
    policy_version: int
    digest: int
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    evaluation: EvaluationPlan
    activity_interval_s: float
    learner_address: str
    report_with_rollout: bool
    def __init__(self, actor_id: _Optional[str] = ..., slot: _Optional[int] = ..., incarnation: _Optional[int] = ..., acknowledged_sequence: _Optional[int] = ..., n_rollout_steps: _Optional[int] = ..., env_seed: _Optional[int] = ..., agent_seed: _Optional[int] = ..., policy: _Optional[_Union[PolicySpec, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., n_envs: _Optional[int] = ..., learner_nonce: _Optional[int] = ..., awaiting_s: _Optional[float] = ..., policy_version: _Optional[int] = ..., digest: _Optional[int] = ..., substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., evaluation: _Optional[_Union[EvaluationPlan, _Mapping]] = ..., activity_interval_s: _Optional[float] = ..., learner_address: _Optional[str] = ..., report_with_rollout: _Optional[bool] = ...) -> None: ...

class EvaluationPlan(_message.Message):
    __slots__ = ("n_episodes", "seed", "actions", "opponents")
    N_EPISODES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    OPPONENTS_FIELD_NUMBER: _ClassVar[int]
    n_episodes: int
    seed: int
    actions: EvaluationActions
    opponents: bool
    def __init__(self, n_episodes: _Optional[int] = ..., seed: _Optional[int] = ..., actions: _Optional[_Union[EvaluationActions, str]] = ..., opponents: _Optional[bool] = ...) -> None: ...

class ReportEvaluationRequest(_message.Message):
    __slots__ = ("actor_id", "incarnation", "learner_nonce", "evaluation", "failure", "digest")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_NONCE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    incarnation: int
    learner_nonce: int
    evaluation: Evaluation
    failure: ActorFailure
    digest: int
    def __init__(self, actor_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., learner_nonce: _Optional[int] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., failure: _Optional[_Union[ActorFailure, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("policy_version", "returns", "lengths", "seconds", "actions", "counts")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    returns: _containers.RepeatedScalarFieldContainer[float]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    actions: EvaluationActions
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, policy_version: _Optional[int] = ..., returns: _Optional[_Iterable[float]] = ..., lengths: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ..., actions: _Optional[_Union[EvaluationActions, str]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class ReportEvaluationResponse(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: int
    def __init__(self, digest: _Optional[int] = ...) -> None: ...

class PolicySpec(_message.Message):
    __slots__ = ("network", "hidden_sizes", "activation", "head", "recurrence", "recurrent_size", "normalize_observations", "observation_clip", "frame_stack")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    RECURRENCE_FIELD_NUMBER: _ClassVar[int]
    RECURRENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_CLIP_FIELD_NUMBER: _ClassVar[int]
    FRAME_STACK_FIELD_NUMBER: _ClassVar[int]
    network: str
    hidden_sizes: _containers.RepeatedScalarFieldContainer[int]
    activation: str
    head: str
    recurrence: str
    recurrent_size: int
    normalize_observations: bool
    observation_clip: float
    frame_stack: int
    def __init__(self, network: _Optional[str] = ..., hidden_sizes: _Optional[_Iterable[int]] = ..., activation: _Optional[str] = ..., head: _Optional[str] = ..., recurrence: _Optional[str] = ..., recurrent_size: _Optional[int] = ..., normalize_observations: _Optional[bool] = ..., observation_clip: _Optional[float] = ..., frame_stack: _Optional[int] = ...) -> None: ...

class StreamRolloutsRequest(_message.Message):
    __slots__ = ("open", "rollout", "frame", "failure", "activity", "report", "digest", "body")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    open: OpenStream
    rollout: Rollout
    frame: TensorFrame
    failure: ActorFailure
    activity: ActorActivity
    report: ActorActivity
    digest: int
    body: bytes
    def __init__(self, open: _Optional[_Union[OpenStream, _Mapping]] = ..., rollout: _Optional[_Union[Rollout, _Mapping]] = ..., frame: _Optional[_Union[TensorFrame, _Mapping]] = ..., failure: _Optional[_Union[ActorFailure, _Mapping]] = ..., activity: _Optional[_Union[ActorActivity, _Mapping]] = ..., report: _Optional[_Union[ActorActivity, _Mapping]] = ..., digest: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class OpenStream(_message.Message):
    __slots__ = ("actor_id", "incarnation", "takes_policies", "policy_version")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TAKES_POLICIES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    incarnation: int
    takes_policies: bool
    policy_version: int
    def __init__(self, actor_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., takes_policies: _Optional[bool] = ..., policy_version: _Optional[int] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("actor_id", "incarnation", "sequence", "policy_version", "substeps", "reward", "terminated", "truncated", "valid", "final_index", "episodes", "env_seeds", "policy_versions", "digest", "event_statistics", "events")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    FINAL_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    ENV_SEEDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EVENT_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    incarnation: int
    sequence: int
    policy_version: int
    substeps: _containers.RepeatedCompositeFieldContainer[SubstepColumns]
    reward: _tensor_pb2.Tensor
    terminated: _tensor_pb2.Tensor
    truncated: _tensor_pb2.Tensor
    valid: _tensor_pb2.Tensor
    final_index: _tensor_pb2.Tensor
    episodes: _containers.RepeatedCompositeFieldContainer[EpisodeStatistics]
    env_seeds: _containers.RepeatedScalarFieldContainer[int]
    policy_versions: _containers.RepeatedScalarFieldContainer[int]
    digest: int
    event_statistics: _containers.RepeatedCompositeFieldContainer[EventStatistic]
    events: _containers.RepeatedCompositeFieldContainer[EventValue]
    def __init__(self, actor_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., policy_version: _Optional[int] = ..., substeps: _Optional[_Iterable[_Union[SubstepColumns, _Mapping]]] = ..., reward: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., terminated: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., truncated: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., valid: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., final_index: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., episodes: _Optional[_Iterable[_Union[EpisodeStatistics, _Mapping]]] = ..., env_seeds: _Optional[_Iterable[int]] = ..., policy_versions: _Optional[_Iterable[int]] = ..., digest: _Optional[int] = ..., event_statistics: _Optional[_Iterable[_Union[EventStatistic, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[EventValue, _Mapping]]] = ...) -> None: ...

class SubstepColumns(_message.Message):
    __slots__ = ("key", "observation", "action", "log_prob", "last_observation", "final_observation", "initial_state", "previous_observation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    LAST_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    action: _tensor_pb2.Tensor
    log_prob: _tensor_pb2.Tensor
    last_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    final_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    initial_state: _tensor_pb2.Tensor
    previous_observation: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    def __init__(self, key: _Optional[str] = ..., observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., action: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., log_prob: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., last_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., final_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., initial_state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., previous_observation: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ...) -> None: ...

class EpisodeStatistics(_message.Message):
    __slots__ = ("env_index", "episode_return", "n_steps", "events")
    ENV_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    N_STEPS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    env_index: int
    episode_return: float
    n_steps: int
    events: _containers.RepeatedCompositeFieldContainer[EventValue]
    def __init__(self, env_index: _Optional[int] = ..., episode_return: _Optional[float] = ..., n_steps: _Optional[int] = ..., events: _Optional[_Iterable[_Union[EventValue, _Mapping]]] = ...) -> None: ...

class EventStatistic(_message.Message):
    __slots__ = ("event", "name", "epoch")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    event: str
    name: str
    epoch: _containers.RepeatedCompositeFieldContainer[EpochStatistic]
    def __init__(self, event: _Optional[str] = ..., name: _Optional[str] = ..., epoch: _Optional[_Iterable[_Union[EpochStatistic, _Mapping]]] = ...) -> None: ...

class EpochStatistic(_message.Message):
    __slots__ = ("name", "reduction", "cumulative")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reduction: StatisticReduction
    cumulative: bool
    def __init__(self, name: _Optional[str] = ..., reduction: _Optional[_Union[StatisticReduction, str]] = ..., cumulative: _Optional[bool] = ...) -> None: ...

class EventValue(_message.Message):
    __slots__ = ("statistic", "group", "value")
    STATISTIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    statistic: int
    group: _containers.RepeatedScalarFieldContainer[str]
    value: float
    def __init__(self, statistic: _Optional[int] = ..., group: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ...) -> None: ...

class TensorFrame(_message.Message):
    __slots__ = ("sequence", "offset")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    offset: int
    def __init__(self, sequence: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ActorActivity(_message.Message):
    __slots__ = ("state", "seconds", "policy_version", "policy_age_s", "dropped_episodes", "cpu_s", "memory_bytes", "answer_p50_s", "answer_p99_s")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DROPPED_EPISODES_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_P50_S_FIELD_NUMBER: _ClassVar[int]
    ANSWER_P99_S_FIELD_NUMBER: _ClassVar[int]
    state: ActingState
    seconds: _containers.RepeatedScalarFieldContainer[float]
    policy_version: int
    policy_age_s: float
    dropped_episodes: int
    cpu_s: float
    memory_bytes: int
    answer_p50_s: float
    answer_p99_s: float
    def __init__(self, state: _Optional[_Union[ActingState, str]] = ..., seconds: _Optional[_Iterable[float]] = ..., policy_version: _Optional[int] = ..., policy_age_s: _Optional[float] = ..., dropped_episodes: _Optional[int] = ..., cpu_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., answer_p50_s: _Optional[float] = ..., answer_p99_s: _Optional[float] = ...) -> None: ...

class ActorFailure(_message.Message):
    __slots__ = ("exception_type", "message", "traceback", "env_seed")
    EXCEPTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    ENV_SEED_FIELD_NUMBER: _ClassVar[int]
    exception_type: str
    message: str
    traceback: str
    env_seed: int
    def __init__(self, exception_type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., env_seed: _Optional[int] = ...) -> None: ...

class StreamRolloutsResponse(_message.Message):
    __slots__ = ("acknowledged_sequence", "credit_sequence", "end_of_training", "min_policy_version", "policy", "digest")
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    END_OF_TRAINING_FIELD_NUMBER: _ClassVar[int]
    MIN_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    acknowledged_sequence: int
    credit_sequence: int
    end_of_training: bool
    min_policy_version: int
    policy: _policy_pb2.PolicyChunk
    digest: int
    def __init__(self, acknowledged_sequence: _Optional[int] = ..., credit_sequence: _Optional[int] = ..., end_of_training: _Optional[bool] = ..., min_policy_version: _Optional[int] = ..., policy: _Optional[_Union[_policy_pb2.PolicyChunk, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...
