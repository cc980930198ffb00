"""What is known when an environment raises."""

import traceback
from collections.abc import Sequence

from gymnasium.vector import SyncVectorEnv, VectorEnv

from services.errors import ActorFailedError


class EnvironmentFailedError(ActorFailedError):
    """An environment raised; the original exception, with its traceback, is the `__cause__`.

    Attributes:
        exception_type: Class of the original exception, for example `"ValueError"`.
        exception_message: Its message.
        exception_traceback: Its traceback, as text.
        env_index: Which of the B environments raised, or None where the vector environment does not tell.
        env_seed: The seed of that environment, or of the first one where `env_index` is None.
    """

    def __init__(self, error: Exception, *, doing: str, env_index: int | None, env_seed: int) -> None:
        """Describes a failure.

        Args:
            error: What was raised.
            doing: `"step"` or `"reset"`.
            env_index: As in the attribute.
            env_seed: As in the attribute.
        """
        self.exception_type = type(error).__name__
        self.exception_message = str(error)
        self.exception_traceback = "".join(traceback.format_exception(error))
        self.env_index = env_index
        self.env_seed = env_seed
        which = "one of the environments" if env_index is None else f"environment {env_index}"
        super().__init__(
            f"{which} (seed {env_seed}) raised {self.exception_type} in {doing}(): {self.exception_message}; expected "
            f"{doing}() to return; mend the environment, its traceback shows where"
        )


def environment_failure(
    error: Exception, vector_env: VectorEnv, *, doing: str, env_seeds: Sequence[int]
) -> EnvironmentFailedError:
    """Says which environment raised, and with what seed it had been started.

    Args:
        error: What `vector_env` raised, with its traceback.
        vector_env: The vector environment.
        doing: `"step"` or `"reset"`.
        env_seeds: The seed of each environment.

    Returns:
        The error to raise from `error`.
    """
    env_index = _failing_index(error, vector_env)
    return EnvironmentFailedError(error, doing=doing, env_index=env_index, env_seed=env_seeds[env_index or 0])


def _failing_index(error: Exception, vector_env: VectorEnv) -> int | None:
    """Reads the index from the frame of SyncVectorEnv, the one that loops over the environments.

    Keeping count in every step instead would cost the hot path what only a failure needs.
    """
    owner = vector_env.unwrapped
    if not isinstance(owner, SyncVectorEnv):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is owner and isinstance(frame.f_locals.get("i"), int):
            env_index: int = frame.f_locals["i"]
            return env_index
    return None
