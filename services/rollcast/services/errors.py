"""Every error rollcast raises on purpose. `error_status` maps each to its gRPC status code.

    RollcastError
    ├── InvalidInputError            a value that cannot be right
    │   ├── ConfigurationError       ... in the settings or a constructor's arguments
    │   ├── InvalidTensorError       ... in a tensor: dtype, shape, size
    │   ├── InvalidSpaceError        ... in a space
    │   ├── InvalidRolloutError      ... in a rollout: columns, order, NaN
    │   │   └── MissingMessageError  ... and what should have come before it has not: lost on its way, or never sent
    │   └── UnreadableMessageError   bytes that are no message: damaged on their way, or never one
    ├── MismatchError                two sides that cannot work together
    │   ├── SpacesMismatchError      their spaces differ
    │   └── ProtocolMismatchError    their protocol versions or policy networks differ
    ├── UnknownActorError            a stream of an actor that has not joined
    ├── DuplicateSequenceError       a rollout sent twice on one stream
    ├── ActorReplacedError           another process has joined under the same name
    ├── UnauthenticatedError         a call without a token, or with one that is nobody's
    ├── PermissionDeniedError        a call that the token's role may not make
    ├── LimitExceededError           a declared limit: message, rollout, actors, credits
    │   └── ThrottledError           ... of what all clients share, and which gets free again: streams, calls a second
    ├── NotReadyError                not now: starting, stopping, no policy yet
    │   └── DamagedMessageError      ... a message is not what its writer sealed: damaged on its way
    ├── RefusedError                 not in this state of the run: pause after the end, checkpoint without run directory
    │   └── TrainingEndedError       ... training has ended: there is nothing to act for
    ├── AddressInUseError            somebody else serves this address
    ├── LearnerUnreachableError      nobody answers at this address
    ├── ContainerEngineError         the Docker engine is not there, or does not do what it is asked to
    ├── RecordingError               a file of rollouts that is none, is not whole, or cannot be written
    ├── ActorFailedError             an exception in an actor, with its traceback
    │   ├── (rollcast.actor.environments.failures.EnvironmentFailedError: which environment, which seed)
    │   └── (rollcast.actor.environments.failures.EnvironmentLostError: its process ended or does not answer)
    ├── CollectTimeoutError          no batch by the deadline, and why
    ├── CollectInterruptedError      no batch because training is to end
    └── StatisticsError              a statistic that does not exist

A message says what is wrong, with the value; what was expected; what to do.
"""


class RollcastError(Exception):
    """Base of every error that rollcast raises on purpose.

    Attributes:
        limit: The limit of `rollcast.services.limits.limits` that is the reason, as it is called there; empty: none is.
    """

    def __init__(self, *args: object, limit: str = "") -> None:
        super().__init__(*args)
        self.limit = limit


def message_of(error: BaseException) -> str:
    """Returns what an exception says, also where that is nothing.

    Args:
        error: Any exception. `sys.exit()` and `sys.exit(3)` raise a SystemExit, which says little by itself.
    """
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"sys.exit({code}) was called"
    return str(error) or "(no message)"


class InvalidInputError(RollcastError, ValueError):
    """A value that cannot be right."""


class ConfigurationError(InvalidInputError):
    """A setting or an argument that cannot be right."""


class InvalidTensorError(InvalidInputError):
    """A tensor whose dtype, shape or size is wrong."""


class InvalidSpaceError(InvalidInputError):
    """A space that is malformed or of a kind that is not supported."""


class InvalidRolloutError(InvalidInputError):
    """A rollout that does not fit what was agreed at Join."""


class MissingMessageError(InvalidRolloutError):
    """A message of a rollout stream came, and what should have come before it has not."""


class UnreadableMessageError(InvalidInputError):
    """Bytes that are no message: damaged on their way, or never one."""


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


class ActorReplacedError(RollcastError):
    """Another process has joined under the same name."""


class UnauthenticatedError(RollcastError):
    """A call without a token, or with one that is nobody's."""


class PermissionDeniedError(RollcastError):
    """A call that the role of its token may not make."""


class LimitExceededError(RollcastError):
    """A declared limit was exceeded."""


class ThrottledError(LimitExceededError):
    """A limit on what all clients share was exceeded: try again with backoff."""


class NotReadyError(RollcastError):
    """Not now, but later: try again with backoff."""


class DamagedMessageError(NotReadyError):
    """A message is not what its writer sealed: it was damaged on its way, and may be sent again."""


class RefusedError(RollcastError):
    """Not in this state of the run; trying again will not help."""


class TrainingEndedError(RefusedError):
    """Training has ended: no rollout is wanted any more."""


class AddressInUseError(RollcastError):
    """Somebody else serves this address."""


class LearnerUnreachableError(RollcastError):
    """Nobody answers at this address."""


class ContainerEngineError(RollcastError):
    """The Docker engine is not there, or does not do what it is asked to."""


class RecordingError(RollcastError):
    """A file of rollouts that is none, is not whole, or cannot be written."""


class ActorFailedError(RollcastError):
    """An exception in an actor, with its traceback."""


class CollectTimeoutError(RollcastError):
    """No batch by the deadline."""


class CollectInterruptedError(RollcastError):
    """No batch, because training is to end."""


class StatisticsError(RollcastError, LookupError):
    """A statistic that does not exist."""


def is_permanent(error: BaseException) -> bool:
    """Tells whether trying again, with everything as it is, meets the same refusal.

    Args:
        error: Any exception.

    Returns:
        True for what settings or spaces are the reason of; False for what may pass: a flaky environment, a learner that
        is gone, a limit on what others hold.
    """
    if isinstance(error, LimitExceededError):
        return not isinstance(error, ThrottledError) and error.limit != "max_actors"
    return isinstance(error, ConfigurationError | InvalidSpaceError | SpacesMismatchError)
