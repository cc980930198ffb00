"""Settings of limits, and of timeouts."""

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import LONGEST_WAIT_S
from rollcast.services.limits.settings import ServerLimitSettings, TimeoutSeconds


class Timeouts(ServerLimitSettings):
    """Settings with a timeout."""

    timeout_s: TimeoutSeconds = 5.0


def test_takes_a_limit_from_the_command_line():
    settings = Timeouts.from_command_line("serve", ["--max-actors", "3", "--limits.request-s", "2"])
    assert (settings.server_limits().max_actors, settings.server_limits().request_s) == (3, 2.0)


def test_refuses_limits_that_contradict_each_other():
    with pytest.raises(ConfigurationError, match="max_rollout_bytes is 2000 and max_bytes_in_flight 1000; expected"):
        Timeouts.from_command_line("serve", ["--limits.max-rollout-bytes=2000", "--limits.max-bytes-in-flight=1000"])


@pytest.mark.parametrize("timeout_s", ["0", "-1", "nan", "inf", "1e12"])
def test_refuses_timeout_that_no_wait_can_keep(timeout_s: str):
    with pytest.raises(ConfigurationError, match="--timeout-s"):
        Timeouts.from_command_line("serve", [f"--timeout-s={timeout_s}"])


def test_accepts_the_longest_timeout():
    assert Timeouts.from_command_line("serve", [f"--timeout-s={LONGEST_WAIT_S}"]).timeout_s == LONGEST_WAIT_S
