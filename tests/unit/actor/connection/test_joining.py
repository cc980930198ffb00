import dataclasses
import itertools
import threading
from collections.abc import Iterator

import pytest
from gymnasium import spaces

from rollcast.actor.connection import reconnects
from rollcast.actor.connection.ending import Ending
from rollcast.actor.connection.joining import Joining
from rollcast.services.errors import NotReadyError, ProtocolMismatchError, SpacesMismatchError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.security.security import PLAIN_CLIENT
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.integration.learner_fakes import DEADLINE_S, FakeLearner, offer, serve
from tests.processes import free_port


@pytest.fixture
def learner() -> Iterator[FakeLearner]:
    with serve() as fake:
        yield fake


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnects, "backoff_delays", lambda: itertools.repeat(0.01))


def joining_of(address: str, ending: Ending | None = None, **changes: object) -> Joining:
    return Joining(address, offer(**changes), security=PLAIN_CLIENT, ending=ending or Ending())


def join(joining: Joining, acknowledged: int = 0, **options: object) -> None:
    client = joining.join(acknowledged, DEADLINE_S, **options)
    assert client is not None
    client.close()


def test_joins_again_until_the_learner_is_ready(learner: FakeLearner):
    learner.sink.join_error = NotReadyError("it is starting; expected a moment; wait")
    attempts = []

    def on_attempt() -> None:
        attempts.append(learner.sink.join_error)
        if len(attempts) == 3:
            learner.sink.join_error = None

    joining = joining_of(learner.address)
    join(joining, on_attempt=on_attempt)
    assert len(attempts) == 3
    assert joining.agreement.actor_id == "a"


def test_goes_on_to_the_next_address_at_once_when_one_is_not_there(learner: FakeLearner):
    attempts = []
    join(joining_of(f"localhost:{free_port()},{learner.address}"), on_attempt=lambda: attempts.append(1))
    assert len(attempts) == 1


def test_raises_a_refusal_at_the_first_attempt(learner: FakeLearner):
    other = {"0": SubstepSpaces(observation=spaces.Discrete(3), action=spaces.Discrete(2))}
    attempts = []
    with pytest.raises(SpacesMismatchError):
        joining_of(learner.address, spaces=other).join(0, DEADLINE_S, on_attempt=lambda: attempts.append(1))
    assert len(attempts) == 1


def test_returns_none_when_the_connection_has_ended(learner: FakeLearner):
    stop = threading.Event()
    learner.sink.join_error = NotReadyError("it is starting; expected a moment; wait")
    assert joining_of(learner.address, Ending(stop)).join(0, DEADLINE_S, on_attempt=stop.set) is None


def test_later_offers_have_what_a_restarted_learner_needs(learner: FakeLearner):
    joining = joining_of(learner.address, n_envs=0)
    assert joining.offer(0) == offer(n_envs=0)
    join(joining)
    assert joining.offer(5) == offer(n_envs=2, incarnation=1, acknowledged_sequence=5)


@pytest.mark.parametrize(
    "change",
    [
        {"n_rollout_steps": 6},
        {"incarnation": 2},
        {"policy": PolicySpec(hidden_sizes=(3,))},
    ],
    ids=str,
)
def test_refuses_a_learner_that_comes_back_with_another_plan(learner: FakeLearner, change: dict[str, object]):
    joining = joining_of(learner.address)
    join(joining)
    before = joining.agreement
    learner.sink.joined["a"] = dataclasses.replace(learner.sink.joined["a"], **change)
    with pytest.raises(ProtocolMismatchError, match="returned with another plan"):
        joining.join(0, DEADLINE_S)
    assert joining.agreement is before


def test_accepts_a_learner_that_comes_back_with_new_seeds(learner: FakeLearner):
    joining = joining_of(learner.address)
    join(joining)
    learner.sink.joined["a"] = dataclasses.replace(learner.sink.joined["a"], env_seed=8, agent_seed=9)
    join(joining)
    assert joining.agreement.env_seed == 8


def test_follows_the_learner_that_sends_it_to_another_of_its_run(learner: FakeLearner):
    with serve() as other:
        learner.sink.elsewhere = other.address
        joining = joining_of(learner.address)
        join(joining)
        assert not learner.sink.joined
        assert list(other.sink.joined) == ["a"]
        assert not other.sink.offers[-1].follows_redirect, "it is not sent on"
        assert joining.place == f"{learner.address}, which has sent this actor to {other.address}"
        # it comes back there, and need not ask the first again
        join(joining)
        assert len(learner.sink.offers) == 1
        assert other.sink.offers[-1].incarnation == 1


def test_stays_with_the_first_learner_and_says_so_if_the_other_cannot_be_reached(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture
):
    nowhere = f"127.0.0.1:{free_port()}"
    learner.sink.elsewhere = nowhere
    joining = joining_of(learner.address)
    join(joining)
    assert list(learner.sink.joined) == ["a"]
    assert f"sends this actor to {nowhere}, which cannot be reached" in caplog.text
    assert f"the actor stays at {learner.address}" in caplog.text
    assert not learner.sink.offers[-1].follows_redirect


def test_an_actor_that_stayed_goes_to_the_other_learner_when_it_is_sent_there_again(learner: FakeLearner):
    learner.sink.elsewhere = f"127.0.0.1:{free_port()}"
    joining = joining_of(learner.address)
    join(joining)
    with serve() as other:
        # both have been started again, and know nothing of this actor
        learner.sink.elsewhere = other.address
        join(joining)
        assert list(other.sink.joined) == ["a"]


def test_asks_the_first_learner_where_a_lost_one_is_now(learner: FakeLearner):
    with serve() as lost:
        learner.sink.elsewhere = lost.address
        joining = joining_of(learner.address)
        join(joining)
    with serve() as back:
        learner.sink.elsewhere = back.address
        join(joining)
        assert list(back.sink.joined) == ["a"]
        assert not learner.sink.joined, "it knows nothing of the rollouts that the other has had"
