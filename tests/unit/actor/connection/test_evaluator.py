import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from rollcast.actor.connection import stall_detector as silence
from rollcast.actor.connection.evaluator import EvaluatorConnection, GivenPolicy
from rollcast.learner.serving.evaluations import EvaluatedPolicy, Evaluations
from rollcast.services.errors import InvalidInputError, NotReadyError
from rollcast.services.joining.evaluation import EvaluationPlan, EvaluationReport, PlayedEpisodes
from rollcast.services.joining.join import ActorRole
from rollcast.services.policies.codec import EncodedPolicy, encode_policy
from tests.integration.learner_fakes import offer
from tests.policies import LostPolicy
from tests.processes import wait_until
from tests.relays import relaying, serve_learner

# it waits for relays, which look for what is new once a second
pytestmark = pytest.mark.slow


def due(desk: Evaluations, version: int, encoded: EncodedPolicy | None = None) -> None:
    """Gives a version to evaluate; its message, unless it is given."""
    state = {"w": np.ones(1, np.float32)}
    desk.offer(EvaluatedPolicy(version=version, env_steps=3, state=state), encoded or encode_policy(version, state))


def played(version: int) -> PlayedEpisodes:
    return PlayedEpisodes(policy_version=version, returns=(1.0,), lengths=(1,), seconds=0.5)


@contextlib.contextmanager
def evaluator(desk: Evaluations, n_relays: int = 0) -> Iterator[EvaluatorConnection]:
    """An evaluator of a learner, behind so many relays."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serve_learner(evaluations=desk)).address
        for _ in range(n_relays):
            address = stack.enter_context(relaying(address)).address
        yield stack.enter_context(EvaluatorConnection(address, offer("e", role=ActorRole.EVALUATE)))


@pytest.mark.parametrize("n_relays", [0, 1, 2])
def test_a_policy_that_was_lost_on_its_way_is_given_again_once_the_evaluator_has_asked_twice(
    monkeypatch: pytest.MonkeyPatch, n_relays: int
):
    skew_s = 0.0
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skew_s))
    desk = Evaluations(EvaluationPlan(n_episodes=1, seed=5))
    with evaluator(desk, n_relays) as connection:
        connection.join()
        lost = LostPolicy(3, encode_policy(3, {"w": np.ones(1, np.float32)}).file)
        due(desk, 3, lost)
        wait_until(lambda: lost.was_sent, "the policy to be on its way")
        for skew_s in (14.0, 16.0, 32.0):  # noqa: B007 - the clock reads it
            assert connection.wait_for_policy(0.01) is None
        given: GivenPolicy | None = None

        def is_given() -> bool:
            nonlocal given
            given = connection.wait_for_policy(0.1)
            return given is not None

        wait_until(is_given, "the policy")
        assert given is not None
        assert given.version == 3
        assert connection.report(given, played(3))
        assert [result.policy.version for result in desk.take()] == [3]


def test_an_evaluator_hears_at_join_which_policy_it_was_given_and_has_not_reported():
    desk = Evaluations(EvaluationPlan(n_episodes=1, seed=5))
    with evaluator(desk) as connection:
        assert connection.join().policy_version == 0
        due(desk, 3)
        given = connection.wait_for_policy(60.0)
        assert given is not None
        assert desk.given_version("e") == 3
        connection.report(given, played(3))
        assert desk.given_version("e") == 0


class Desk(Evaluations):
    """Takes each report, and answers too late."""

    n_reports = 0

    def report(self, report: EvaluationReport) -> None:
        super().report(report)
        self.n_reports += 1
        if self.n_reports > 9:
            raise InvalidInputError(f"report {self.n_reports} on one policy")
        raise NotReadyError("the answer comes too late")


@contextlib.contextmanager
def evaluator_that_plays_version(version: int, desk: Evaluations) -> Iterator[tuple[EvaluatorConnection, GivenPolicy]]:
    """An evaluator of a learner, with its first policy."""
    with evaluator(desk) as connection:
        connection.join()
        due(desk, version)
        given = connection.wait_for_policy(60.0)
        assert given is not None
        yield connection, given


def test_a_report_whose_answer_never_comes_in_time_is_known_by_the_next_policy():
    with evaluator_that_plays_version(3, desk := Desk(EvaluationPlan(n_episodes=1, seed=5))) as (connection, given):
        due(desk, 4)
        assert connection.report(given, played(3))
        newer = connection.wait_for_policy(60.0)
        assert newer is not None
        assert newer.version == 4
        assert [result.policy.version for result in desk.take()] == [3]


def test_an_evaluator_whose_answer_was_lost_keeps_the_next_policy_when_it_subscribes_again():
    desk = Evaluations(EvaluationPlan(n_episodes=1, seed=5))
    with evaluator_that_plays_version(3, desk) as (connection, given):
        due(desk, 4)
        lost = EvaluationReport(actor_id="e", incarnation=1, learner_nonce=given.learner_nonce, outcome=played(3))
        desk.report(lost)  # the evaluator has no answer
        wait_until(lambda: connection._newest is not None, "the next policy")
        due(desk, 5)
        holding = connection._subscription
        with desk.subscription("e", 1, holds_version=4):  # in the place of its own
            wait_until(lambda: connection._subscription is not holding, "the evaluator to subscribe again")
        assert connection.report(given, played(3))
        newer = connection.wait_for_policy(60.0)
        assert newer is not None
        assert newer.version == 4
        assert connection.report(newer, played(4)), "the learner has not given another in its place"
        assert [result.policy.version for result in desk.take()] == [3, 4]
