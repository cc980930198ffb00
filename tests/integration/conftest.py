"""Shares one forkserver between the tests of a process, and runs commands in the process itself."""

import signal
from collections.abc import Callable, Iterator
from multiprocessing import forkserver

import pytest
import torch
from threadpoolctl import threadpool_limits

from rollcast.learner.actors.forkserver import PRELOAD
from rollcast.services.process.socket_paths import short_temporary_paths
from rollcast.tools import cli

_OF_TESTS = ("tests.environments", "tests.matrix.environments", "tests.vector_environments")


@pytest.fixture(scope="session", autouse=True)
def forkserver_with_environments() -> None:
    """Starts the forkserver before any actors do: it imports modules when it starts, and serves until the end."""
    forkserver.set_forkserver_preload([*PRELOAD, *_OF_TESTS])
    with short_temporary_paths():
        forkserver.ensure_running()


@pytest.fixture
def refused_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Runs, in this process, a command that ends with an error in words; returns its output and its errors."""

    def refuse(*arguments: object, code: int = 2) -> tuple[str, str]:
        ended = cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (ended, "Traceback" in printed.err) == (code, False), printed
        return printed

    # it would last as long as this process
    monkeypatch.setattr(cli, "reuse_large_buffers", lambda: None)
    return refuse


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    """Limits this process to one thread, as deterministic runs do; signals are the learner's while it runs."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with threadpool_limits(limits=1):
        yield
    # new threads take what the last call has set
    torch.set_num_threads(torch.get_num_threads())
    assert {number: signal.getsignal(number) for number in handlers} == handlers
