"""A learner that takes its spaces from the first actor, before that one comes."""

import pytest

from rollcast.learner.serving.first_actor import spaces_of_first_actor
from rollcast.services.errors import CollectTimeoutError
from rollcast.services.limits.limits import Limits


def test_says_where_it_waits_for_the_first_actor():
    lines = []
    with pytest.raises(CollectTimeoutError, match="no actor has joined at") as error:
        spaces_of_first_actor("127.0.0.1:0", limits=Limits(), timeout_s=0.0, announce=lines.append)
    (line,) = lines
    address = line.removeprefix("waiting for the first actor at ").split(",")[0]
    assert address.startswith("127.0.0.1:")
    assert address in str(error.value)
