import re
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.limits import limits
from rollcast.services.limits.limits import DEFAULT_LIMITS, LONGEST_WAIT_S, Limits
from rollcast.services.limits.settings import LimitSettings, ServerLimitSettings, TimeoutSeconds
from tests.documents import text_of

ROOT = Path(__file__).parents[4]
CONTRACT = sorted(name.lower() for name in vars(limits) if re.match(r"M(AX|IN)_", name))
SETTINGS = sorted(Limits.__dataclass_fields__)


def test_settings_cover_every_limit_but_the_actors():
    assert {*LimitSettings.model_fields, "max_actors"} == set(SETTINGS)
    assert ServerLimitSettings().server_limits() == DEFAULT_LIMITS
    settings = ServerLimitSettings(max_actors=3, limits=LimitSettings(calls_per_second=5))
    assert settings.server_limits() == Limits(max_actors=3, calls_per_second=5)


@pytest.mark.parametrize("name", SETTINGS)
def test_rejects_limit_of_zero(name):
    with pytest.raises(ConfigurationError, match=f"{name} is 0"):
        Limits(**{name: 0}).check()


def test_rejects_room_below_one_rollout():
    with pytest.raises(ConfigurationError, match="expected room for at least one rollout"):
        Limits(max_rollout_bytes=2, max_bytes_in_flight=1).check()


@pytest.mark.parametrize("name", [*CONTRACT, *SETTINGS])
def test_docs_list_every_limit_with_its_value(name):
    (shown,) = re.findall(rf"^\| `{name}` \| ([^|]+) \|", text_of("limits.md"), re.MULTILINE)
    base, power, unit = re.fullmatch(r"([\d.]+)(?:\^(\d+))?(?: (\w+))?", shown).groups()
    units = {None: 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    expected = getattr(DEFAULT_LIMITS, name) if name in SETTINGS else getattr(limits, name.upper())
    assert float(base) ** int(power or 1) * units[unit] == expected


@pytest.mark.parametrize("max_actors", [1, 64])
def test_docs_list_the_limits_that_follow_the_number_of_actors(max_actors: int):
    found = Limits(max_actors=max_actors)
    assert "| `max_streams` | 2 x `max_actors` + 8 |" in text_of("limits.md")
    assert "| `max_calls` | `max_actors` + 8 |" in text_of("limits.md")
    assert (found.max_streams, found.max_calls) == (2 * max_actors + 8, max_actors + 8)


class Timeouts(ServerLimitSettings):
    """Settings with a timeout."""

    timeout_s: TimeoutSeconds = 5.0


def test_refuses_limits_that_contradict_each_other():
    with pytest.raises(
        ConfigurationError,
        match=r"--limits\.max-rollout-bytes is 2000 and --limits\.max-bytes-in-flight 1000; expected",
    ):
        Timeouts.from_command_line("serve", ["--limits.max-rollout-bytes=2000", "--limits.max-bytes-in-flight=1000"])


@pytest.mark.parametrize("timeout_s", ["0", "-1", "nan", "inf", "1e12"])
def test_refuses_timeout_that_no_wait_can_keep(timeout_s: str):
    with pytest.raises(ConfigurationError, match="--timeout-s"):
        Timeouts.from_command_line("serve", [f"--timeout-s={timeout_s}"])


def test_accepts_the_longest_timeout():
    assert Timeouts.from_command_line("serve", [f"--timeout-s={LONGEST_WAIT_S}"]).timeout_s == LONGEST_WAIT_S
