"""Every error rollcast raises on purpose. `error_status` maps each to its gRPC status code.

    RollcastError
    ├── InvalidInputError            an invalid value
    │   ├── ConfigurationError       ... in the settings or a constructor's arguments
    │   ├── InvalidTensorError       ... in a tensor: dtype, shape, size
    │   ├── InvalidSpaceError        ... in a space
    │   ├── InvalidTurnError         ... in a turn of an environment that has dialled in: agents, order, NaN
    │   ├── InvalidRolloutError      ... in a rollout: columns, order, NaN
    │   │   └── MissingMessageError  ... the message before it is missing: lost on its way, or never sent
    │   └── UnreadableMessageError   bytes that do not parse as a message: damaged, or never a message
    ├── MismatchError                two sides that cannot work together
    │   ├── SpacesMismatchError      their spaces differ
    │   └── ProtocolMismatchError    their protocol versions or policy networks differ
    ├── UnknownActorError            a stream of an actor that has not joined
    ├── DuplicateSequenceError       a rollout sent twice on one stream
    ├── NameTakenError               a client with environments has the name of one that plays
    ├── ActorReplacedError           another process has joined under the same name
    ├── UnauthenticatedError         a call without a token, or with a token that the learner does not know
    ├── PermissionDeniedError        a call that the token's role may not make
    ├── LimitExceededError           a declared limit: message, rollout, actors, credits
    │   └── ThrottledError           ... on what all clients share and free again: streams, calls a second
    ├── NotReadyError                not now, but later: starting, stopping, no policy yet
    │   └── DamagedMessageError      ... a message differs from what was sent: send it again
    ├── RefusedError                 not in this state of the run: pause after the end, checkpoint without run directory
    │   └── TrainingEndedError       ... training has ended: no rollout is wanted any more
    ├── AddressInUseError            another server has this address
    ├── LearnerUnreachableError      no learner answers at this address
    ├── ContainerEngineError         the Docker engine is missing, or refuses a request
    ├── SlurmError                   Slurm is missing, or refuses a job
    ├── RecordingError               a file of rollouts that is damaged, incomplete or cannot be written
    ├── ActorFailedError             an exception in an actor, with its traceback
    │   ├── (rollcast.actor.environments.failures.EnvironmentFailedError: with the environment and its seed)
    │   └── (rollcast.actor.environments.failures.EnvironmentLostError: its process ended or does not answer)
    ├── CollectTimeoutError          no batch by the deadline, and the reason
    ├── CollectInterruptedError      no batch, because training must end
    ├── RankLostError                another rank of the run is gone, or does not answer in time
    └── StatisticsError              a statistic that does not exist

A message says what is wrong, with the value; what was expected; and what to do.
"""


class RollcastError(Exception):
    """Base of every error that rollcast raises on purpose.

    Attributes:
        limit: The exceeded limit, by its name in `rollcast.services.limits.limits`; empty: no limit was exceeded.
    """

    def __init__(self, *args: object, limit: str = "") -> None:
        super().__init__(*args)
        self.limit = limit


def message_of(error: BaseException) -> str:
    """Returns the message of an exception; "(no message)" if it is empty.

    Args:
        error: Any exception. A SystemExit is described as the call of `sys.exit` that raised it.
    """
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"sys.exit({code}) was called"
    return str(error) or "(no message)"


class InvalidInputError(RollcastError, ValueError):
    """An invalid value."""


class ConfigurationError(InvalidInputError):
    """An invalid setting or constructor argument."""


class InvalidTensorError(InvalidInputError):
    """A tensor whose dtype, shape or size is wrong."""


class InvalidSpaceError(InvalidInputError):
    """A space that is malformed or of a kind that is not supported."""


class InvalidTurnError(InvalidInputError):
    """A turn of an environment that has dialled in, which breaks a rule of environment.proto."""


class InvalidRolloutError(InvalidInputError):
    """A rollout that does not fit what was agreed at Join."""


class MissingMessageError(InvalidRolloutError):
    """A message of a rollout stream came before the one that must precede it."""


class UnreadableMessageError(InvalidInputError):
    """Bytes that do not parse as a message: damaged on their way, or never a message."""


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
    """A client with environments has the name of one that plays."""


class ActorReplacedError(RollcastError):
    """Another process has joined under the same name."""


class UnauthenticatedError(RollcastError):
    """A call without a token, or with a token that the learner does not know."""


class PermissionDeniedError(RollcastError):
    """A call that the role of its token may not make."""


class LimitExceededError(RollcastError):
    """A declared limit was exceeded."""


class ThrottledError(LimitExceededError):
    """A limit on what all clients share was exceeded; try again with backoff."""


class NotReadyError(RollcastError):
    """The learner cannot do this now, but later; try again with backoff."""


class DamagedMessageError(NotReadyError):
    """A message that differs from what was sent; it may be sent again."""


class RefusedError(RollcastError):
    """The run's state does not allow this; trying again will not help."""


class TrainingEndedError(RefusedError):
    """Training has ended: no rollout is wanted any more."""


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
    """An exception in an actor, with its traceback."""


class CollectTimeoutError(RollcastError):
    """No batch by the deadline."""


class CollectInterruptedError(RollcastError):
    """Collecting a batch was interrupted, because training must end."""


class RankLostError(RollcastError):
    """Another rank of the run has ended, or did not take part in an operation in time."""


class StatisticsError(RollcastError, LookupError):
    """A statistic that does not exist."""


def is_permanent(error: BaseException) -> bool:
    """Returns whether the same attempt, with nothing changed, will be refused again.

    Args:
        error: Any exception.

    Returns:
        True if settings or spaces are the reason. False if the reason may pass: a flaky environment, a learner that is
            down, a limit on what others hold.
    """
    if isinstance(error, LimitExceededError):
        return not isinstance(error, ThrottledError) and error.limit != "max_actors"
    return isinstance(error, ConfigurationError | InvalidSpaceError | SpacesMismatchError)
