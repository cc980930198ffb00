"""An actor's connection over reconnects: which policy it goes on with."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actor.connection import LearnerConnection
from services.errors import ConfigurationError
from services.security import ClientSecurity
from tests.integration.learner_fakes import DEADLINE_S, FakeLearner, offer, serve
from tests.processes import wait_until


@pytest.fixture
def learner() -> Iterator[FakeLearner]:
    with serve() as fake:
        fake.source.publish(5, {"w": np.zeros(3, np.float32)})
        yield fake


def reconnect(learner: FakeLearner, connection: LearnerConnection) -> None:
    """Breaks the rollout stream, and waits until the actor is back with another."""
    broken = len(learner.sink.streams)
    learner.sink.streams[-1].cancel()
    learner.sink.wait_for(lambda: len(learner.sink.streams) > broken)
    assert connection.wait_for_credit(1, DEADLINE_S)


def test_it_keeps_the_policy_of_the_learner_it_comes_back_to(learner: FakeLearner):
    with LearnerConnection(learner.address, offer()) as connection:
        connection.join()
        assert connection.wait_for_credit(1, DEADLINE_S)
        before = connection.take_policy()
        reconnect(learner, connection)
        assert connection.take_policy() is before, "nothing was forgotten, and nothing was sent again"
        learner.source.publish(6, {"w": np.ones(3, np.float32)})
        wait_until(lambda: connection.take_policy()[0] == 6, "the next policy")


@pytest.mark.parametrize("nonces", [(1, 2), (0, 0)], ids=["another", "one that does not say who it is"])
def test_it_forgets_the_policy_when_it_comes_back_to_another_learner(learner: FakeLearner, nonces: tuple[int, int]):
    learner.sink.learner_nonce = nonces[0]
    with LearnerConnection(learner.address, offer()) as connection:
        connection.join()
        assert connection.wait_for_credit(1, DEADLINE_S)
        assert not connection.take_policy()[1]["w"].any()
        learner.sink.learner_nonce = nonces[1]
        # of the same version, so that asking for what is newer would bring nothing
        learner.source.publish(5, {"w": np.ones(3, np.float32)})
        reconnect(learner, connection)
        assert connection.take_policy()[1]["w"].all(), "versions of different learners cannot be compared"


def test_files_that_are_being_replaced_are_waited_for(learner: FakeLearner, tmp_path: Path, caplog):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    security = ClientSecurity(token_file=token)
    with LearnerConnection(learner.address, offer(), security=security) as connection:
        connection.join()
        assert connection.wait_for_credit(1, DEADLINE_S)
        token.unlink()
        broken = len(learner.sink.streams)
        learner.sink.streams[-1].cancel()
        wait_until(lambda: "cannot be read (FileNotFoundError)" in caplog.text, "an attempt without the file")
        token.write_text("0123456789abcdef")
        learner.sink.wait_for(lambda: len(learner.sink.streams) > broken)
        assert connection.wait_for_credit(1, DEADLINE_S)


def test_files_that_are_wrong_from_the_beginning_end_it(learner: FakeLearner, tmp_path: Path):
    security = ClientSecurity(token_file=tmp_path / "missing")
    with LearnerConnection(learner.address, offer(), security=security) as connection:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            connection.join()


def test_it_stays_with_the_number_of_environments_that_was_agreed(learner: FakeLearner):
    offers = []
    join = learner.sink.join
    learner.sink.join = lambda offer: offers.append(offer.n_envs) or join(offer)
    with LearnerConnection(learner.address, offer(n_envs=0)) as connection:
        assert connection.join().n_envs == 2
        assert connection.wait_for_credit(1, DEADLINE_S)
        reconnect(learner, connection)
    assert offers == [0, 2]
