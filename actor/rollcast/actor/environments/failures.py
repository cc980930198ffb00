"""Reports about environments that raised an exception, and the errors that contain these reports."""

import json
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gymnasium.vector import SyncVectorEnv, VectorEnv

from rollcast.actor.environments.returned_values import InvalidValueError
from rollcast.services.errors import ActorFailedError, message_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """A report about an environment that raised an exception. Reports can be sent to other processes.

    Attributes:
        exception_type: The class of the exception.
        exception_message: The message of the exception.
        exception_traceback: The traceback of the exception, as text.
        doing: `"make"`, `"step"`, `"reset"` or the name of another called method.
        env_index: Index of the environment; None: unknown.
        env_seed: The environment's last seed; None: none.
        is_wrong_value: True: rollcast raised the exception, because the environment returned a wrong value.
    """

    exception_type: str
    exception_message: str
    exception_traceback: str
    doing: str
    env_index: int | None
    env_seed: int | None
    is_wrong_value: bool = False

    @classmethod
    def of(cls, error: BaseException, *, doing: str, env_index: int | None, env_seed: int | None) -> "FailureReport":
        """Makes the report of an exception, with its traceback."""
        return cls(
            exception_type=type(error).__name__,
            exception_message=message_of(error),
            exception_traceback="".join(traceback.format_exception(error)),
            doing=doing,
            env_index=env_index,
            env_seed=env_seed,
            is_wrong_value=isinstance(error, InvalidValueError),
        )

    def to_json(self) -> bytes:
        """Returns the report as a JSON object."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "FailureReport":
        """Reads a report from a JSON object."""
        return cls(**json.loads(text))


class EnvironmentFailedError(ActorFailedError):
    """An environment raised an exception, or returned a wrong value. An exception in this process is the `__cause__`.

    Attributes:
        report: The report, which can be sent to other processes.
        exception_type: The class of the original exception, for example `"ValueError"`.
        exception_message: The message of the exception.
        exception_traceback: The traceback of the exception, as text.
        env_index: The index of the failed environment; None: unknown.
        env_seed: The seed of the failed environment, or of the first environment if `env_index` is None; None: no seed.
    """

    def __init__(self, report: FailureReport) -> None:
        """Takes the values of a report."""
        self.report = report
        self.exception_type = report.exception_type
        self.exception_message = report.exception_message
        self.exception_traceback = report.exception_traceback
        self.env_index = report.env_index
        self.env_seed = report.env_seed
        which = "one of the environments" if report.env_index is None else f"environment {report.env_index}"
        super().__init__(
            f"{which} (seed {report.env_seed}) returned a wrong value from {report.doing}(): {self.exception_message}"
            if report.is_wrong_value
            else f"{which} (seed {report.env_seed}) raised {self.exception_type} in {report.doing}(): "
            f"{self.exception_message}; expected {report.doing}() to return; correct the environment (the "
            "traceback shows where)"
        )


class EnvironmentLostError(ActorFailedError):
    """The process of an environment has ended, or does not answer.

    Attributes:
        env_index: The index of the environment that the process was stepping, or of its first environment.
        env_seed: The last seed of that environment; None: no seed.
    """

    def __init__(self, problem: str, *, env_index: int, env_seed: int | None) -> None:
        """Makes the message from `problem`: what is wrong; what was expected; what to do."""
        self.env_index = env_index
        self.env_seed = env_seed
        super().__init__(f"environment {env_index} (seed {env_seed}) {problem}")


def environment_failure(
    error: BaseException, vector_env: VectorEnv, *, doing: str, env_seeds: Sequence[int]
) -> EnvironmentFailedError:
    """Makes an error with the index and the seed of the environment that raised an exception.

    Args:
        error: The exception of `vector_env`, with its traceback.
        vector_env: The vector environment.
        doing: `"step"` or `"reset"`.
        env_seeds: The seed of each environment.

    Returns:
        An error to raise from `error`.
    """
    env_index = _failing_index(error, vector_env)
    return EnvironmentFailedError(
        FailureReport.of(error, doing=doing, env_index=env_index, env_seed=env_seeds[env_index or 0])
    )


def _failing_index(error: BaseException, vector_env: VectorEnv) -> int | None:
    """Reads the failing environment's index from the frame in which gymnasium's SyncVectorEnv loops.

    A counter in every step would slow the hot path, and only failures need the index.
    """
    owner = vector_env.unwrapped
    if not isinstance(owner, SyncVectorEnv):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is owner and isinstance(frame.f_locals.get("i"), int):
            env_index: int = frame.f_locals["i"]
            return env_index
    return None
