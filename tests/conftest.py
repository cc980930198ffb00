"""What every test relies on: one torch thread, and no thread or process left behind."""

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)
# its assertions are to say as much as those of a test module
pytest.register_assert_rewrite("tests.distributed_actors_suite")

# How long what a test has stopped may take to be gone.
_GONE_WITHIN_S = 5.0


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_not_ignored() -> Iterator[None]:
    """Gives tests, and the processes that they start, a SIGINT that works.

    A shell that starts the tests in the background has them ignore it, and so would every process they start.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fails a test that leaves one of rollcast's threads or child processes behind."""
    yield
    deadline = time.monotonic() + _GONE_WITHIN_S
    while left := _left_behind():
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        threading.Event().wait(0.02)


def _left_behind() -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("rollcast")]
    return threads + [f"process {child.name}" for child in multiprocessing.active_children()]
