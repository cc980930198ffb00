import pytest

from rollcast.services.errors import (
    ActorFailedError,
    ConfigurationError,
    InvalidSpaceError,
    InvalidTensorError,
    LearnerUnreachableError,
    LimitExceededError,
    SpacesMismatchError,
    ThrottledError,
    is_permanent,
    message_of,
)
from tests.vector_environments import WithoutMessageError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no"), "no"),
        (WithoutMessageError(), "(no message: LookupError while it was made)"),
        (ValueError(), "(no message)"),
        (SystemExit(), "sys.exit() was called"),
        (SystemExit(3), "sys.exit(3) was called"),
        (SystemExit("bye"), "sys.exit('bye') was called"),
    ],
)
def test_every_exception_has_a_message(error: BaseException, message: str):
    assert message_of(error) == message


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (ConfigurationError("x"), True),
        (InvalidSpaceError("x", limit="max_space_elements"), True),
        (SpacesMismatchError("x"), True),
        (LimitExceededError("x", limit="max_rollout_bytes"), True),
        (LimitExceededError("x", limit="max_actors"), False),
        (ThrottledError("x"), False),
        (InvalidTensorError("x"), False),
        (ActorFailedError("x"), False),
        (LearnerUnreachableError("x"), False),
        (RuntimeError("x"), False),
    ],
)
def test_only_errors_of_settings_or_spaces_are_permanent(error: BaseException, permanent: bool):
    assert is_permanent(error) is permanent
