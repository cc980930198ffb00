"""The ground of every test: one torch thread, the same rounding each time, and no deadline of hypothesis'.

No test leaves a thread or a process behind.

Also lists, after a run, the unit tests that are too slow for `make quick` and not marked `slow`.
"""

import gc
import multiprocessing
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis
import pytest

from rollcast.actor.rounding import fix_rounding
from tests.processes import SHARED_ZYGOTE, environment
from tests.zygote import share

# Until all tests are collected: what is imported and collected stays, and to look through it takes seconds.
gc.disable()
# `make numeric` has the tests run on two as well.
_N_THREADS = int(os.environ.get("TEST_THREADS", "1"))
try:
    import torch
except ModuleNotFoundError:
    torch = None  # `make light-3.12`: the tests of what needs no torch
else:
    torch.set_num_threads(_N_THREADS)
# Before anything computes: runs in the tests' own process are compared, bit for bit, with runs in others.
fix_rounding()
# An example may take longer on a busy machine than the 200 ms that hypothesis allows. Each run draws others, and
# `make fuzz` looks for what is rare.
hypothesis.settings.register_profile("rollcast", deadline=None, max_examples=40)
hypothesis.settings.load_profile("rollcast")
# its assertions are to say as much as those of a test module
pytest.register_assert_rewrite("tests.distributed_actors_suite")

# The time that a stopped thread or process has to be gone.
_GONE_WITHIN_S = 60.0
# Unit tests of more than half a second are marked `slow`. Those above this that are not are listed: machines differ.
# CPU time, with that of child processes: a busy machine does not change it much.
_SLOW_CPU_S = 2.0
_CPU = "cpu_s"
_TESTS = Path(__file__).parent
# The folders whose tests are short, but for those marked `slow`.
_QUICK = ("unit", "contract", "budgets")


def pytest_configure(config: pytest.Config) -> None:
    """Has the processes of this run share the one that forks commands; it imports for seconds."""
    if not getattr(config.option, "numprocesses", None):
        return
    # it collects nothing itself
    gc.enable()
    if SHARED_ZYGOTE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="zygote-")
        config.add_cleanup(folder.cleanup)
        path = Path(folder.name) / "socket"
        share(path, environment())
        os.environ[SHARED_ZYGOTE] = str(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the rest of a walk unless `make walks` asks for it, and skips what needs a GPU where there is none."""
    if "whole" not in config.option.markexpr:
        items[:] = [item for item in items if "whole" not in item.keywords]
    if torch is None or not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))
    if hasattr(config, "workerinput"):
        items[:] = _long_files_first(items)


def _long_files_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Orders the files for processes that each take the next: files of quick tests come last, so all end at once.

    Before them, files of all folders are mixed: those of one folder mostly wait, those of another mostly compute.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    folders: dict[str, list[Path]] = {}
    for path, tests in files.items():
        folder = path.relative_to(_TESTS).parts[0]
        is_quick = folder in _QUICK and not any("slow" in test.keywords for test in tests)
        folders.setdefault("" if is_quick else folder, []).append(path)
    places = {
        path: (folder == "", (index + 0.5) / len(paths))
        for folder, paths in folders.items()
        for index, path in enumerate(paths)
    }
    return [item for path in sorted(files, key=places.__getitem__) for item in files[path]]


def pytest_collection_finish() -> None:
    """Collects garbage from now on, but not among what is there already."""
    gc.enable()
    gc.freeze()


# What Ctrl-C and Ctrl-\ send, with what Python does then.
_KEYS = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}


@pytest.fixture(scope="session", autouse=True)
def keys_are_not_ignored() -> Iterator[None]:
    """Gives tests, and the processes that they start, a SIGINT and a SIGQUIT that work.

    A shell that starts the tests in the background has them ignore both, and so would every process they start.
    """
    before = {number: signal.getsignal(number) for number in _KEYS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, _KEYS[number])
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def threads_of_the_run() -> None:
    """Gives each test the threads of this run: what acts or trains in this process limits them to one."""
    if torch is not None and torch.get_num_threads() != _N_THREADS:
        torch.set_num_threads(_N_THREADS)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measures the CPU time of each test."""
    before = _cpu_s()
    try:
        return (yield)
    finally:
        item.user_properties.append((_CPU, _cpu_s() - before))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists unit tests that are slow and not marked so; a list, not a failure, because machines differ."""
    unmarked = {
        report.nodeid: seconds
        for report in terminalreporter.getreports("passed")
        for name, seconds in report.user_properties
        if name == _CPU and seconds > _SLOW_CPU_S and "slow" not in report.keywords and "/unit/" in report.nodeid
    }
    if unmarked:
        terminalreporter.section(f"unit tests of more than {_SLOW_CPU_S:g} s of CPU: mark them slow")
        for test, seconds in sorted(unmarked.items(), key=lambda found: -found[1]):
            terminalreporter.line(f"{seconds:6.1f} s  {test}")


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
