"""Defines every error that rollcast raises on purpose. `error_status` maps each error to a gRPC status code.

    RollcastError
    ├── InvalidInputError            an invalid value
    │   ├── ConfigurationError       ... in the settings or a constructor's arguments
    │   ├── InvalidTensorError       ... in a tensor: dtype, shape, size
    │   ├── InvalidSpaceError        ... in a space
    │   ├── InvalidTurnError         ... in a turn of an environment that has dialled in: agents, order, NaN
    │   ├── InvalidRolloutError      ... in a rollout: columns, order, NaN
    │   │   └── MissingMessageError  ... the preceding message is missing: lost, or never sent
    │   └── UnreadableMessageError   bytes that do not parse as a message, perhaps because of damage
    ├── MismatchError                two sides that cannot work together
    │   ├── SpacesMismatchError      their spaces differ
    │   └── ProtocolMismatchError    their protocol versions or policy networks differ
    ├── UnknownActorError            a stream of an actor that has not joined
    ├── DuplicateSequenceError       a rollout sent twice on one stream
    ├── NameTakenError               a client with environments has the name of a connected one
    ├── ActorReplacedError           another process has joined under the same name
    ├── UnauthenticatedError         a call without a token, or with a token that the learner does not know
    ├── PermissionDeniedError        a call that the token's role may not make
    ├── LimitExceededError           a declared limit: message, rollout, actors, credits
    │   └── ThrottledError           ... on a resource that all clients share: streams, calls a second
    ├── NotReadyError                not possible yet: starting, stopping, no policy yet
    │   └── DamagedMessageError      ... a message was damaged in transit: send it again
    ├── RefusedError                 not possible in this state: pause after the end, checkpoint without run directory
    │   └── TrainingEndedError       ... training has ended: the learner accepts no more rollouts
    ├── AddressInUseError            another server has this address
    ├── LearnerUnreachableError      no learner answers at this address
    ├── ContainerEngineError         the Docker engine is missing, or refuses a request
    ├── SlurmError                   Slurm is missing, or refuses a job
    ├── RecordingError               a file of rollouts that is damaged, incomplete or cannot be written
    ├── ActorFailedError             an exception in an actor
    │   ├── (rollcast.actor.environments.failures.EnvironmentFailedError: with the environment and its seed)
    │   └── (rollcast.actor.environments.failures.EnvironmentLostError: its process ended or does not answer)
    ├── CollectTimeoutError          no batch by the deadline, and the reason
    ├── CollectInterruptedError      no batch, because training must end
    ├── RankLostError                another rank of the run is gone, or did not answer in time
    └── StatisticsError              a statistic that does not exist

A message has three parts: what is wrong, with the value; what was expected; what to do.
"""


class RollcastError(Exception):
    """Base of every error that rollcast raises on purpose.

    Attributes:
        limit: The name of the exceeded limit in `rollcast.services.limits.limits`; empty: no limit was exceeded.
    """

    def __init__(self, *args: object, limit: str = "") -> None:
        super().__init__(*args)
        self.limit = limit


def message_of(error: BaseException) -> str:
    """Returns the message of an exception; "(no message)" if it is empty or cannot be made.

    Args:
        error: Any exception. For a SystemExit, the message is the call of `sys.exit` that raised it.
    """
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"sys.exit({code}) was called"
    try:
        return str(error) or "(no message)"
    except Exception as failure:  # noqa: BLE001 - whatever a user's exception raises while it is printed
        return f"(no message: {type(failure).__name__} while it was made)"


class InvalidInputError(RollcastError, ValueError):
    """An invalid value."""


class ConfigurationError(InvalidInputError):
    """An invalid setting or constructor argument."""


class InvalidTensorError(InvalidInputError):
    """A tensor whose dtype, shape or size is wrong."""


class InvalidSpaceError(InvalidInputError):
    """A space that is malformed or of an unsupported kind."""


class InvalidTurnError(InvalidInputError):
    """A turn of an environment that has dialled in breaks a rule of environment.proto."""


class InvalidRolloutError(InvalidInputError):
    """A rollout that does not fit the agreement at Join."""


class MissingMessageError(InvalidRolloutError):
    """A message of a rollout stream arrived before the message that must precede it."""


class UnreadableMessageError(InvalidInputError):
    """Bytes that do not parse as a message, perhaps because they were damaged in transit."""


class MismatchError(RollcastError):
    """Two sides that cannot work together."""


class SpacesMismatchError(MismatchError):
    """The spaces of two sides differ."""


class ProtocolMismatchError(MismatchError):
    """The protocol versions or the policy networks of two sides differ."""


class UnknownActorError(RollcastError):
    """An actor that has not joined."""


class DuplicateSequenceError(RollcastError):
    """A rollout sent twice on one stream."""


class NameTakenError(RollcastError):
    """A client with environments has the name of a connected one."""


class ActorReplacedError(RollcastError):
    """Another process has joined under the same name."""


class UnauthenticatedError(RollcastError):
    """A call without a token, or with a token that the learner does not know."""


class PermissionDeniedError(RollcastError):
    """A call that the role of the caller's token may not make."""


class LimitExceededError(RollcastError):
    """A declared limit was exceeded."""


class ThrottledError(LimitExceededError):
    """A limit on a resource that all clients share was exceeded; try again with backoff."""


class NotReadyError(RollcastError):
    """The learner cannot answer this call yet; try again with backoff."""


class DamagedMessageError(NotReadyError):
    """A message was damaged in transit; send it again."""


class RefusedError(RollcastError):
    """The run's state does not allow this call; trying again will not help."""


class TrainingEndedError(RefusedError):
    """Training has ended: the learner accepts no more rollouts."""


class AddressInUseError(RollcastError):
    """Another server has this address."""


class LearnerUnreachableError(RollcastError):
    """No learner answers at this address."""


class ContainerEngineError(RollcastError):
    """The Docker engine is missing, or refuses a request."""


class SlurmError(RollcastError):
    """Slurm is missing, or refuses a job."""


class RecordingError(RollcastError):
    """A file of rollouts that is damaged, incomplete or cannot be written."""


class ActorFailedError(RollcastError):
    """An exception in an actor. If the actor is another process, the log has the traceback."""


class CollectTimeoutError(RollcastError):
    """The actors delivered no batch by the deadline."""


class CollectInterruptedError(RollcastError):
    """Collecting a batch was interrupted, because training must end."""


class RankLostError(RollcastError):
    """Another rank of the run has ended, or did not join an operation in time."""


class StatisticsError(RollcastError, LookupError):
    """A statistic that does not exist."""


def is_permanent(error: BaseException) -> bool:
    """Returns whether a repeated attempt will fail again.

    Args:
        error: Any exception.

    Returns:
        True if settings or spaces are the cause. False if the cause is temporary: a flaky environment, an unreachable
        learner, a limit on a shared resource.
    """
    if isinstance(error, LimitExceededError):
        return not isinstance(error, ThrottledError) and error.limit != "max_actors"
    return isinstance(error, ConfigurationError | InvalidSpaceError | SpacesMismatchError)
