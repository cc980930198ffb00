from rollcast.v1 import space_pb2 as _space_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGENT_STATE_UNSPECIFIED: _ClassVar[AgentState]
    AGENT_STATE_RUNNING: _ClassVar[AgentState]
    AGENT_STATE_TERMINATED: _ClassVar[AgentState]
    AGENT_STATE_INTERRUPTED: _ClassVar[AgentState]
    AGENT_STATE_REWARDED: _ClassVar[AgentState]
AGENT_STATE_UNSPECIFIED: AgentState
AGENT_STATE_RUNNING: AgentState
AGENT_STATE_TERMINATED: AgentState
AGENT_STATE_INTERRUPTED: AgentState
AGENT_STATE_REWARDED: AgentState

class PlayRequest(_message.Message):
    __slots__ = ("hello", "turns", "digest")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    turns: Turns
    digest: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., turns: _Optional[_Union[Turns, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...

class PlayResponse(_message.Message):
    __slots__ = ("welcome", "actions", "farewell", "digest")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    actions: Actions
    farewell: Farewell
    digest: int
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ..., digest: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "client", "substeps", "n_envs", "software")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SUBSTEPS_FIELD_NUMBER: _ClassVar[int]
    N_ENVS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client: str
    substeps: _containers.RepeatedCompositeFieldContainer[_space_pb2.SubstepSpaces]
    n_envs: int
    software: str
    def __init__(self, protocol: _Optional[int] = ..., client: _Optional[str] = ..., substeps: _Optional[_Iterable[_Union[_space_pb2.SubstepSpaces, _Mapping]]] = ..., n_envs: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("client", "seeds", "max_message_bytes")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    client: str
    seeds: _containers.RepeatedScalarFieldContainer[int]
    max_message_bytes: int
    def __init__(self, client: _Optional[str] = ..., seeds: _Optional[_Iterable[int]] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class Turns(_message.Message):
    __slots__ = ("turns",)
    TURNS_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[EnvironmentTurn]
    def __init__(self, turns: _Optional[_Iterable[_Union[EnvironmentTurn, _Mapping]]] = ...) -> None: ...

class EnvironmentTurn(_message.Message):
    __slots__ = ("environment", "agents", "episode_values")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_VALUES_FIELD_NUMBER: _ClassVar[int]
    environment: int
    agents: _containers.RepeatedCompositeFieldContainer[AgentTurn]
    episode_values: _containers.RepeatedCompositeFieldContainer[EpisodeValue]
    def __init__(self, environment: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[AgentTurn, _Mapping]]] = ..., episode_values: _Optional[_Iterable[_Union[EpisodeValue, _Mapping]]] = ...) -> None: ...

class AgentTurn(_message.Message):
    __slots__ = ("substep", "agent", "state", "observation", "reward", "executed_action", "chosen_by")
    SUBSTEP_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_ACTION_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_BY_FIELD_NUMBER: _ClassVar[int]
    substep: int
    agent: int
    state: AgentState
    observation: _containers.RepeatedScalarFieldContainer[bytes]
    reward: float
    executed_action: bytes
    chosen_by: str
    def __init__(self, substep: _Optional[int] = ..., agent: _Optional[int] = ..., state: _Optional[_Union[AgentState, str]] = ..., observation: _Optional[_Iterable[bytes]] = ..., reward: _Optional[float] = ..., executed_action: _Optional[bytes] = ..., chosen_by: _Optional[str] = ...) -> None: ...

class EpisodeValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("environments", "policy_version", "progress")
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    environments: _containers.RepeatedCompositeFieldContainer[EnvironmentActions]
    policy_version: int
    progress: float
    def __init__(self, environments: _Optional[_Iterable[_Union[EnvironmentActions, _Mapping]]] = ..., policy_version: _Optional[int] = ..., progress: _Optional[float] = ...) -> None: ...

class EnvironmentActions(_message.Message):
    __slots__ = ("environment", "agents")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    environment: int
    agents: _containers.RepeatedCompositeFieldContainer[AgentAction]
    def __init__(self, environment: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[AgentAction, _Mapping]]] = ...) -> None: ...

class AgentAction(_message.Message):
    __slots__ = ("substep", "agent", "action")
    SUBSTEP_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    substep: int
    agent: int
    action: bytes
    def __init__(self, substep: _Optional[int] = ..., agent: _Optional[int] = ..., action: _Optional[bytes] = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ("reason", "training_ended")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ENDED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    training_ended: bool
    def __init__(self, reason: _Optional[str] = ..., training_ended: _Optional[bool] = ...) -> None: ...
