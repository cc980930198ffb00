import contextlib
import dataclasses
import functools
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcast.services.errors import (
    LearnerUnreachableError,
    NotReadyError,
    PermissionDeniedError,
    ProtocolMismatchError,
    UnauthenticatedError,
)
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.services.version import software_version
from rollcast.tools.watching import follower as module
from rollcast.tools.watching.follower import Follower, Snapshot
from tests.histories import RUN, busy_run, points, serve_history, serve_without_history, status, update
from tests.integration.learner_fakes import DEADLINE_S, FakeControl
from tests.processes import free_port

following = functools.partial(Follower, interval_s=0.1)


def until(follower: Follower, condition: Callable[[Snapshot], bool]) -> Snapshot:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(snapshot := follower.snapshot()):
        assert time.monotonic() < deadline, f"it did not happen: {snapshot}"
        follower.wait(snapshot.version, 0.1)
    return snapshot


def problem_of(follower: Follower) -> str:
    problem = until(follower, lambda snapshot: snapshot.problem is not None).problem
    assert problem is not None
    return problem


def test_has_all_that_the_learner_remembers_then_what_is_new():
    with serve_history(busy_run()) as served, following(served.address) as follower:
        first = follower.wait_for_first(DEADLINE_S)
        assert (first.view.run, first.problem) == (RUN, None)
        assert len(first.view.points()) == 60
        for second in range(61, 70):
            now_s = float(second)
            served.history.set_next(update(now_s, points=points(1, end_s=now_s)))
            later = until(follower, lambda snapshot, now_s=now_s: snapshot.view.now_s == now_s)
            assert len(later.view.points()) == second
            assert later.view.points()[-1].time_s == RUN.started_unix_s + second
        assert later.version > first.version
        assert len(first.view.points()) == 60


def test_says_that_no_learner_answers():
    address = f"127.0.0.1:{free_port()}"
    with following(address) as follower:
        problem = problem_of(follower)
        assert problem.startswith(f"no learner answers at {address}")
        with pytest.raises(LearnerUnreachableError, match="no learner answers"):
            follower.wait_for_first(DEADLINE_S)


def test_follows_a_learner_that_comes_back(tmp_path: Path):
    address = f"unix:{tmp_path}/learner"
    with contextlib.ExitStack() as stack:
        with serve_history(busy_run(), address):
            follower = stack.enter_context(following(address))
            follower.wait_for_first(DEADLINE_S)
        lost = until(follower, lambda snapshot: snapshot.problem is not None)
        assert len(lost.view.points()) == 60
        restarted = dataclasses.replace(RUN, started_unix_s=RUN.started_unix_s + 100)
        with serve_history(dataclasses.replace(busy_run(), run=restarted), address):
            back = until(follower, lambda snapshot: snapshot.problem is None)
            assert back.view.run == restarted
            assert len(back.view.points()) == 120


def test_says_why_a_starting_learner_tells_nothing_then_follows_it():
    with serve_history(busy_run()) as served:
        served.history.error = NotReadyError("training has not started; try again with backoff")
        with following(served.address) as follower:
            problem = problem_of(follower)
            assert problem == "training has not started; try again with backoff"
            assert follower.wait_for_first(0.0).problem == problem
            served.history.error = None
            assert follower.wait_for_first(DEADLINE_S).problem is None


def test_says_that_the_learner_is_too_old(monkeypatch: pytest.MonkeyPatch):
    with serve_without_history() as learner, following(learner.address) as follower:
        with pytest.raises(ProtocolMismatchError, match=r"runs rollcast \(unknown\), which sends no history; expected"):
            follower.wait_for_first(DEADLINE_S)
    monkeypatch.setattr(FakeControl, "status", lambda _: LearnerStatus(phase=Phase.TRAINING, software_version="0.0.1"))
    with serve_without_history() as learner, following(learner.address) as follower:
        problem = problem_of(follower)
        assert "runs rollcast 0.0.1, which sends no history" in problem
        assert "update it, or use `rollcast status`" in problem


def test_says_that_a_learner_of_this_version_keeps_no_history(monkeypatch: pytest.MonkeyPatch):
    own = LearnerStatus(phase=Phase.TRAINING, software_version=software_version())
    monkeypatch.setattr(FakeControl, "status", lambda _: own)
    with (
        serve_without_history() as learner,
        following(learner.address) as follower,
        pytest.raises(ProtocolMismatchError, match="keeps no history"),
    ):
        follower.wait_for_first(DEADLINE_S)


def test_token_that_is_refused_is_named_and_its_file_is_read_again(tmp_path: Path):
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"viewer:{'v' * 32}\nactor:{'a' * 32}\n")
    security = ServerSecurity.from_files(tokens_file=tokens)
    with serve_history(busy_run(), security=security) as served:
        token.write_text("w" * 32)
        with following(served.address, security=ClientSecurity(token_file=token)) as follower:
            with pytest.raises(UnauthenticatedError, match="refuses the token"):
                follower.wait_for_first(DEADLINE_S)
            token.write_text("a" * 32)
            refused = until(follower, lambda snapshot: "may not watch" in (snapshot.problem or ""))
            assert "expected one of role viewer or operator" in (refused.problem or "")
            with pytest.raises(PermissionDeniedError):
                follower.wait_for_first(DEADLINE_S)
            token.write_text("v" * 32)
            assert until(follower, lambda snapshot: snapshot.view.now_s is not None).problem is None


def test_end_of_training_is_no_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.05)
    finished = dataclasses.replace(busy_run(), status=status(phase=Phase.FINISHED))
    with contextlib.ExitStack() as stack:
        with serve_history(finished) as served:
            follower = stack.enter_context(following(served.address))
            follower.wait_for_first(DEADLINE_S)
        # The follower asks again, and nobody answers.
        assert not follower.wait(follower.snapshot().version, 0.3)
        assert follower.snapshot().problem is None


def test_learner_that_stops_and_answers_no_more_has_ended():
    stopping = dataclasses.replace(busy_run(), status=status(phase=Phase.STOPPING))
    with contextlib.ExitStack() as stack:
        with serve_history(stopping) as served:
            follower = stack.enter_context(following(served.address))
            first = follower.wait_for_first(DEADLINE_S)
            assert first.view.status == stopping.status
        ended = until(follower, lambda snapshot: snapshot.view.status == status(phase=Phase.FINISHED))
        assert ended.problem is None
        assert first.view.status == stopping.status


def test_says_that_a_learner_is_stuck(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_LATE_S", 0.2)
    with serve_history(busy_run()) as served, following(served.address) as follower:
        follower.wait_for_first(DEADLINE_S)
        with served.history.changed:  # the learner cannot answer meanwhile
            problem = problem_of(follower)
        assert problem.startswith(f"the learner at {served.address} has sent no status for")
        assert until(follower, lambda snapshot: snapshot.problem is None).version > 1


def test_says_that_an_address_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as mute, following(f"127.0.0.1:{mute.getsockname()[1]}") as follower:
        with pytest.raises(LearnerUnreachableError, match=r"did not answer within 200 ms.*no firewall"):
            follower.wait_for_first(0.2)


def test_close_ends_the_stream_and_the_thread():
    with serve_history(busy_run()) as served:
        follower = Follower(served.address, interval_s=3600.0)
        follower.wait_for_first(DEADLINE_S)
        follower.close()
        follower.close()
        assert follower.wait(10**9, DEADLINE_S)
    assert not [thread for thread in threading.enumerate() if thread.name == "rollcast-follower"]
