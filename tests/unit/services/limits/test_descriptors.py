import resource

import pytest

from rollcast.services.limits.descriptors import room_for_connections


@pytest.fixture
def hard():
    """The hard limit of this process, whose soft limit is 256 and comes back at the end."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_the_limit_is_raised_as_far_as_it_may_be(hard):
    room = room_for_connections(100)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (room, soft) == (100, min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536)


def test_half_of_few_descriptors_are_the_process_s_own(hard, caplog):
    soft = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    assert room_for_connections(10**9) == soft - min(512, soft // 2)
    assert f"may have {soft} descriptors" in caplog.text
