"""Describes an actor's failures for its learner."""

import traceback

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.services.errors import message_of
from rollcast.services.joining.activity import ActorFailure


def describe_failure(error: BaseException, env_seed: int) -> ActorFailure:
    """Describes the exception that ends an actor.

    Args:
        error: The exception.
        env_seed: The seed of the environments, for errors without the seed of a single environment.
    """
    if isinstance(error, EnvironmentFailedError):
        return ActorFailure(
            exception_type=error.exception_type,
            message=str(error),
            traceback=error.exception_traceback,
            env_seed=env_seed if error.env_seed is None else error.env_seed,
        )
    return ActorFailure(
        exception_type=type(error).__name__,
        message=message_of(error),
        traceback="".join(traceback.format_exception(error)),
        env_seed=env_seed,
    )


def step_timeout(seconds: float, step_timeout_s: float, stack: str, env_seed: int) -> ActorFailure:
    """Describes a step that takes too long.

    Args:
        seconds: The seconds since the step began.
        step_timeout_s: The longest duration of a step, in seconds.
        stack: The stack of the thread that steps.
        env_seed: The seed of the environments.
    """
    return ActorFailure(
        exception_type="StepTimeout",
        message=f"a step of the environments has taken {seconds:.0f} s; expected at most {step_timeout_s:g}; "
        "correct the environment (the traceback shows where it hangs), or raise --step-timeout-s",
        traceback=stack,
        env_seed=env_seed,
    )
