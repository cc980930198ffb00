"""The wire protocol, its servers and its clients, with their values, codecs and errors."""

from typing import TYPE_CHECKING

from rollcast.services.exports import lazy_exports

if TYPE_CHECKING:
    from rollcast.services.client.client import LearnerClient
    from rollcast.services.client.replay import ReplayClient
    from rollcast.services.columns.columns import SubstepColumns
    from rollcast.services.errors import (
        ActorFailedError,
        ActorReplacedError,
        AddressInUseError,
        CollectInterruptedError,
        CollectTimeoutError,
        ConfigurationError,
        ContainerEngineError,
        DamagedMessageError,
        DuplicateSequenceError,
        InvalidInputError,
        InvalidRolloutError,
        InvalidSpaceError,
        InvalidTensorError,
        LearnerUnreachableError,
        LimitExceededError,
        MismatchError,
        MissingMessageError,
        NotReadyError,
        PermissionDeniedError,
        ProtocolMismatchError,
        RecordingError,
        RefusedError,
        RollcastError,
        SlurmError,
        SpacesMismatchError,
        StatisticsError,
        ThrottledError,
        TrainingEndedError,
        UnauthenticatedError,
        UnknownActorError,
        UnreadableMessageError,
    )
    from rollcast.services.joining.activity import ActorFailure
    from rollcast.services.limits.limits import Limits
    from rollcast.services.policies.policies import PolicySpec, PolicyState, SavedPolicy
    from rollcast.services.process.printable import PrintableFormatter
    from rollcast.services.replay.replay import ReplayBatch, ReplayColumns, ReplayInfo, ReplayStatus
    from rollcast.services.rollouts.recording import RolloutWriter, read_rollouts
    from rollcast.services.rollouts.recording_codec import RecordingHeader
    from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
    from rollcast.services.security.security import ClientSecurity, ServerSecurity, ServerTls
    from rollcast.services.spaces.spaces import (
        FLAT_SUBSTEP,
        EnvironmentSpaces,
        Observation,
        SubstepSpaces,
        flatten_observation,
        unflatten_observation,
    )
    from rollcast.services.status.description import LearnerDescription
    from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
    from rollcast.services.version import software_version

__all__ = [
    "FLAT_SUBSTEP",
    "ActorFailedError",
    "ActorFailure",
    "ActorInfo",
    "ActorReplacedError",
    "ActorState",
    "AddressInUseError",
    "ClientSecurity",
    "CollectInterruptedError",
    "CollectTimeoutError",
    "ConfigurationError",
    "ContainerEngineError",
    "DamagedMessageError",
    "DuplicateSequenceError",
    "EnvironmentSpaces",
    "EpisodeStatistics",
    "InvalidInputError",
    "InvalidRolloutError",
    "InvalidSpaceError",
    "InvalidTensorError",
    "LearnerClient",
    "LearnerDescription",
    "LearnerStatus",
    "LearnerUnreachableError",
    "LimitExceededError",
    "Limits",
    "MismatchError",
    "MissingMessageError",
    "NotReadyError",
    "Observation",
    "PermissionDeniedError",
    "Phase",
    "PolicySpec",
    "PolicyState",
    "PrintableFormatter",
    "ProtocolMismatchError",
    "RecordingError",
    "RecordingHeader",
    "RefusedError",
    "ReplayBatch",
    "ReplayClient",
    "ReplayColumns",
    "ReplayInfo",
    "ReplayStatus",
    "RollcastError",
    "Rollout",
    "RolloutWriter",
    "SavedPolicy",
    "ServerSecurity",
    "ServerTls",
    "SlurmError",
    "SpacesMismatchError",
    "StatisticsError",
    "SubstepColumns",
    "SubstepSpaces",
    "ThrottledError",
    "TrainingEndedError",
    "UnauthenticatedError",
    "UnknownActorError",
    "UnreadableMessageError",
    "flatten_observation",
    "read_rollouts",
    "software_version",
    "unflatten_observation",
]

if not TYPE_CHECKING:  # otherwise every misspelt name would have the type of `__getattr__`
    __getattr__, __dir__ = lazy_exports(__name__)
