"""One forkserver for all tests of a process, which has imported what their actors and environments need."""

from multiprocessing import forkserver

import pytest

from rollcast.learner.actors.forkserver import PRELOAD
from rollcast.services.process.socket_paths import short_temporary_paths

_OF_TESTS = ("tests.environments", "tests.matrix.environments", "tests.vector_environments")


@pytest.fixture(scope="session", autouse=True)
def forkserver_with_environments() -> None:
    """Starts the forkserver before any actors do: it imports modules when it starts, and serves until the end."""
    forkserver.set_forkserver_preload([*PRELOAD, *_OF_TESTS])
    with short_temporary_paths():
        forkserver.ensure_running()
