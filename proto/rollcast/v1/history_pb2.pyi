from rollcast.v1 import learner_pb2 as _learner_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LearnerActivity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEARNER_ACTIVITY_UNSPECIFIED: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_WAITING: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_UPDATING: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_PUBLISHING: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_CHECKPOINTING: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_PAUSED: _ClassVar[LearnerActivity]

class EventSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_SEVERITY_UNSPECIFIED: _ClassVar[EventSeverity]
    EVENT_SEVERITY_INFO: _ClassVar[EventSeverity]
    EVENT_SEVERITY_WARNING: _ClassVar[EventSeverity]
    EVENT_SEVERITY_ERROR: _ClassVar[EventSeverity]
LEARNER_ACTIVITY_UNSPECIFIED: LearnerActivity
LEARNER_ACTIVITY_WAITING: LearnerActivity
LEARNER_ACTIVITY_UPDATING: LearnerActivity
LEARNER_ACTIVITY_PUBLISHING: LearnerActivity
LEARNER_ACTIVITY_CHECKPOINTING: LearnerActivity
LEARNER_ACTIVITY_PAUSED: LearnerActivity
EVENT_SEVERITY_UNSPECIFIED: EventSeverity
EVENT_SEVERITY_INFO: EventSeverity
EVENT_SEVERITY_WARNING: EventSeverity
EVENT_SEVERITY_ERROR: EventSeverity

class WatchHistoryRequest(_message.Message):
    __slots__ = ("interval_s",)
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    def __init__(self, interval_s: _Optional[float] = ...) -> None: ...

class WatchHistoryResponse(_message.Message):
    __slots__ = ("now_s", "run", "status", "actors", "points", "evaluations", "lanes", "events", "delays", "continues", "curves")
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DELAYS_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    CURVES_FIELD_NUMBER: _ClassVar[int]
    now_s: float
    run: RunFacts
    status: _learner_pb2.LearnerStatus
    actors: _containers.RepeatedCompositeFieldContainer[_learner_pb2.ActorInfo]
    points: _containers.RepeatedCompositeFieldContainer[HistoryPoint]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationPoint]
    lanes: _containers.RepeatedCompositeFieldContainer[Lane]
    events: _containers.RepeatedCompositeFieldContainer[HistoryEvent]
    delays: PolicyDelays
    continues: bool
    curves: _containers.RepeatedCompositeFieldContainer[MetricCurve]
    def __init__(self, now_s: _Optional[float] = ..., run: _Optional[_Union[RunFacts, _Mapping]] = ..., status: _Optional[_Union[_learner_pb2.LearnerStatus, _Mapping]] = ..., actors: _Optional[_Iterable[_Union[_learner_pb2.ActorInfo, _Mapping]]] = ..., points: _Optional[_Iterable[_Union[HistoryPoint, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationPoint, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[Lane, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[HistoryEvent, _Mapping]]] = ..., delays: _Optional[_Union[PolicyDelays, _Mapping]] = ..., continues: _Optional[bool] = ..., curves: _Optional[_Iterable[_Union[MetricCurve, _Mapping]]] = ...) -> None: ...

class RunFacts(_message.Message):
    __slots__ = ("env_id", "algorithm", "run_dir", "seed", "stop_return", "started_unix_s", "software_version", "settings")
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    RUN_DIR_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_RETURN_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    env_id: str
    algorithm: str
    run_dir: str
    seed: int
    stop_return: float
    started_unix_s: float
    software_version: str
    settings: str
    def __init__(self, env_id: _Optional[str] = ..., algorithm: _Optional[str] = ..., run_dir: _Optional[str] = ..., seed: _Optional[int] = ..., stop_return: _Optional[float] = ..., started_unix_s: _Optional[float] = ..., software_version: _Optional[str] = ..., settings: _Optional[str] = ...) -> None: ...

class HistoryPoint(_message.Message):
    __slots__ = ("time_s", "interval_s", "env_steps", "env_steps_per_second", "updates", "policy_version", "mean_return", "episodes", "waiting_fraction", "queue_size", "actors_alive", "replay_size")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FRACTION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACTORS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_SIZE_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    interval_s: float
    env_steps: int
    env_steps_per_second: float
    updates: int
    policy_version: int
    mean_return: float
    episodes: int
    waiting_fraction: float
    queue_size: int
    actors_alive: int
    replay_size: int
    def __init__(self, time_s: _Optional[float] = ..., interval_s: _Optional[float] = ..., env_steps: _Optional[int] = ..., env_steps_per_second: _Optional[float] = ..., updates: _Optional[int] = ..., policy_version: _Optional[int] = ..., mean_return: _Optional[float] = ..., episodes: _Optional[int] = ..., waiting_fraction: _Optional[float] = ..., queue_size: _Optional[int] = ..., actors_alive: _Optional[int] = ..., replay_size: _Optional[int] = ...) -> None: ...

class EvaluationPoint(_message.Message):
    __slots__ = ("time_s", "env_steps", "policy_version", "mean_return", "ci_low", "ci_high", "best")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    CI_LOW_FIELD_NUMBER: _ClassVar[int]
    CI_HIGH_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    env_steps: int
    policy_version: int
    mean_return: float
    ci_low: float
    ci_high: float
    best: bool
    def __init__(self, time_s: _Optional[float] = ..., env_steps: _Optional[int] = ..., policy_version: _Optional[int] = ..., mean_return: _Optional[float] = ..., ci_low: _Optional[float] = ..., ci_high: _Optional[float] = ..., best: _Optional[bool] = ...) -> None: ...

class MetricCurve(_message.Message):
    __slots__ = ("metric", "time_s", "env_steps", "values")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    metric: str
    time_s: _containers.RepeatedScalarFieldContainer[float]
    env_steps: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, metric: _Optional[str] = ..., time_s: _Optional[_Iterable[float]] = ..., env_steps: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class Lane(_message.Message):
    __slots__ = ("actor_id", "interval_s", "end_s", "shares")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    interval_s: float
    end_s: float
    shares: bytes
    def __init__(self, actor_id: _Optional[str] = ..., interval_s: _Optional[float] = ..., end_s: _Optional[float] = ..., shares: _Optional[bytes] = ...) -> None: ...

class HistoryEvent(_message.Message):
    __slots__ = ("time_s", "severity", "who", "text", "detail")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    severity: EventSeverity
    who: str
    text: str
    detail: str
    def __init__(self, time_s: _Optional[float] = ..., severity: _Optional[_Union[EventSeverity, str]] = ..., who: _Optional[str] = ..., text: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class PolicyDelays(_message.Message):
    __slots__ = ("trajectories_by_lag", "max_policy_lag", "data_age_p50_s", "data_age_p99_s", "publish_lag_p50_s", "publish_lag_p99_s")
    TRAJECTORIES_BY_LAG_FIELD_NUMBER: _ClassVar[int]
    MAX_POLICY_LAG_FIELD_NUMBER: _ClassVar[int]
    DATA_AGE_P50_S_FIELD_NUMBER: _ClassVar[int]
    DATA_AGE_P99_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_LAG_P50_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_LAG_P99_S_FIELD_NUMBER: _ClassVar[int]
    trajectories_by_lag: _containers.RepeatedScalarFieldContainer[int]
    max_policy_lag: int
    data_age_p50_s: float
    data_age_p99_s: float
    publish_lag_p50_s: float
    publish_lag_p99_s: float
    def __init__(self, trajectories_by_lag: _Optional[_Iterable[int]] = ..., max_policy_lag: _Optional[int] = ..., data_age_p50_s: _Optional[float] = ..., data_age_p99_s: _Optional[float] = ..., publish_lag_p50_s: _Optional[float] = ..., publish_lag_p99_s: _Optional[float] = ...) -> None: ...
