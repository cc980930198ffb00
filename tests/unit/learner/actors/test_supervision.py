import logging
from dataclasses import dataclass, field

import pytest

from rollcast.learner.actors import supervision
from rollcast.learner.actors.supervision import ActorEnd, Supervision
from rollcast.services.errors import ActorFailedError


@dataclass
class FakeActor:
    """Runs until it is given an end."""

    actor_id: str = "fake-0"
    launches: int = 0
    ends: list[ActorEnd] = field(default_factory=list)

    def launch(self) -> None:
        self.launches += 1

    def take_end(self) -> ActorEnd | None:
        return self.ends.pop() if self.ends else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(supervision.time, "monotonic", lambda: now[0])
    return now


def supervise(actor: FakeActor, max_restarts: int = 2) -> tuple[Supervision, list[tuple[str, ActorEnd]]]:
    exits: list[tuple[str, ActorEnd]] = []
    supervised = Supervision([actor], max_restarts=max_restarts, on_exit=lambda *exit_: exits.append(exit_))
    supervised.start()
    return supervised, exits


def fail(supervised: Supervision, actor: FakeActor, clock: list[float]) -> None:
    """Lets it end, and looks until its backoff has passed."""
    actor.ends.append(ActorEnd("signal 9"))
    supervised.look_after()
    clock[0] += 6.0
    supervised.look_after()


def test_what_has_ended_is_started_again_when_its_backoff_has_passed(
    clock: list[float], caplog: pytest.LogCaptureFixture
):
    supervised, exits = supervise(actor := FakeActor())
    actor.ends.append(ActorEnd("signal 9\nand its log"))
    with caplog.at_level(logging.WARNING):
        supervised.look_after()
    supervised.look_after()
    assert actor.launches == 1
    clock[0] += 0.1
    supervised.look_after()
    assert actor.launches == 2
    assert exits == [("fake-0", ActorEnd("signal 9\nand its log"))]
    assert caplog.messages == ["fake-0 ended: signal 9; restarting it"]


def test_too_many_failures_in_a_row_are_the_end(clock: list[float]):
    supervised, exits = supervise(actor := FakeActor())
    fail(supervised, actor, clock)
    fail(supervised, actor, clock)
    with pytest.raises(
        ActorFailedError, match=r"fake-0 failed and will not be restarted \(failure 3 in a row\): signal 9"
    ):
        fail(supervised, actor, clock)
    assert len(exits) == 3
    supervised.look_after()
    assert actor.launches == 3, "lost for good"


def test_one_that_has_lived_for_a_minute_has_failed_for_the_first_time(clock: list[float]):
    supervised, _ = supervise(actor := FakeActor(), max_restarts=1)
    for launches in (2, 3, 4):
        clock[0] += 61.0
        fail(supervised, actor, clock)
        assert actor.launches == launches


def test_what_cannot_recover_is_not_started_again(clock: list[float]):
    supervised, exits = supervise(actor := FakeActor(), max_restarts=10)
    actor.ends.append(end := ActorEnd("exit code 2", may_recover=False))
    with pytest.raises(ActorFailedError, match=r"failure 1 in a row\): exit code 2"):
        supervised.look_after()
    assert exits == [("fake-0", end)]


BROKEN = ActorEnd("EnvironmentFailedError: the pole is broken", may_be_repeated=True)


def supervise_two(*, has_rollouts: bool) -> tuple[Supervision, list[FakeActor]]:
    actors = [FakeActor("fake-0"), FakeActor("fake-1")]
    supervised = Supervision(actors, max_restarts=5, on_exit=lambda *_: None, has_rollouts=lambda: has_rollouts)
    supervised.start()
    return supervised, actors


def test_if_all_fail_before_the_first_rollout_none_is_started_again_and_none_is_said_to_be(
    clock: list[float], caplog: pytest.LogCaptureFixture
):
    supervised, (first, second) = supervise_two(has_rollouts=False)
    first.ends.append(BROKEN)
    supervised.look_after()
    clock[0] += 4.0
    supervised.look_after()
    second.ends.append(BROKEN)
    with pytest.raises(ActorFailedError, match=r"all 2 actors failed before the first rollout, .*: EnvironmentFailed"):
        supervised.look_after()
    assert (first.launches, caplog.messages) == (1, [])


@pytest.mark.parametrize(("has_rollouts", "other"), [(True, BROKEN), (False, ActorEnd("signal 9"))])
def test_after_rollouts_or_for_other_reasons_they_are_started_again(
    has_rollouts: bool, other: ActorEnd, clock: list[float]
):
    supervised, actors = supervise_two(has_rollouts=has_rollouts)
    for actor, end in zip(actors, (BROKEN, other), strict=True):
        actor.ends.append(end)
    supervised.look_after()
    clock[0] += 6.0
    supervised.look_after()
    assert [actor.launches for actor in actors] == [2, 2]
