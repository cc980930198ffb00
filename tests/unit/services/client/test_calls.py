"""Deadlines of clients."""

import math

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import LONGEST_WAIT_S


@pytest.mark.parametrize("client", [LearnerClient, ReplayClient])
@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf, 1e12])
def test_refuses_timeout_outside_the_range(client, timeout_s: float):
    with pytest.raises(ConfigurationError, match=f"timeout_s is {timeout_s}; expected .* at most 2000000"):
        client("127.0.0.1:1", timeout_s=timeout_s)


@pytest.mark.parametrize("client", [LearnerClient, ReplayClient])
def test_accepts_the_longest_timeout(client):
    with client("127.0.0.1:1", timeout_s=LONGEST_WAIT_S) as made:
        assert made.address == "127.0.0.1:1"
