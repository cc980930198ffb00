"""An actor's connection over reconnects: which policy it goes on with."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollcast.actor.connection import reconnects
from rollcast.actor.connection import stall_detector as silence
from rollcast.actor.connection.learner import LearnerConnection
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.learner.serving.rounds import Rounds
from rollcast.services.errors import ConfigurationError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.policies.codec import EncodedPolicy, encode_policy
from rollcast.services.policies.encodings import ENCODINGS
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts import codec as rollout_codec
from rollcast.services.security.security import ClientSecurity
from rollcast.services.status.status import ActorState
from rollcast.services.streams import service as rollout_service
from rollcast.services.streams import uplink as rollout_uplink
from rollcast.v1 import rollout_pb2
from tests.integration.learner_fakes import DEADLINE_S, FakeLearner, offer, serve
from tests.processes import wait_until
from tests.relays import relaying, serve_learner
from tests.rollouts import make_rollout

pytestmark = pytest.mark.slow


@pytest.fixture
def learner() -> Iterator[FakeLearner]:
    with serve() as fake:
        fake.source.publish(5, {"w": np.zeros(3, np.float32)})
        yield fake


@contextlib.contextmanager
def connected(learner: FakeLearner, **options: Any) -> Iterator[LearnerConnection]:
    """An actor that has joined, and may play."""
    with LearnerConnection(learner.address, offer(), **options) as connection:
        connection.join()
        assert connection.wait_for_credit(1, DEADLINE_S)
        yield connection


def streams_of_actors() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rollcast-uplink"]


def reconnect(learner: FakeLearner, connection: LearnerConnection) -> None:
    """Breaks the rollout stream, and waits until the actor is back with another."""
    broken = len(learner.sink.streams)
    learner.sink.streams[-1].cancel()
    learner.sink.wait_for(lambda: len(learner.sink.streams) > broken)
    assert connection.wait_for_credit(1, DEADLINE_S)


def test_keeps_the_policy_after_reconnecting_to_the_same_learner_and_says_how_long_it_would_wait(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture
):
    with connected(learner) as connection:
        before = connection.take_policy()
        reconnect(learner, connection)
        assert connection.take_policy() is before, "nothing was forgotten, and nothing was sent again"
        learner.source.publish(6, {"w": np.ones(3, np.float32)})
        wait_until(lambda: connection.take_policy()[0] == 6, "the next policy")
    (line,) = [record.message for record in caplog.records if "lost the learner" in record.message]
    assert line.endswith("reconnecting for up to 10 min (--reconnect-timeout-s); Ctrl-C or SIGTERM ends the actor")


def test_a_child_of_the_learner_names_no_option_that_it_does_not_have(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture
):
    with connected(learner, is_child=True) as connection:
        reconnect(learner, connection)
    (line,) = [record.message for record in caplog.records if "lost the learner" in record.message]
    assert line.endswith("reconnecting for up to 10 min")


def test_an_actor_that_stops_does_not_say_that_it_reconnects(learner: FakeLearner, caplog: pytest.LogCaptureFixture):
    stop = threading.Event()
    with connected(learner, stop=stop):
        stop.set()
        learner.sink.streams[-1].cancel()
        wait_until(lambda: not streams_of_actors(), "the streams' threads to end")
    assert "lost the learner" not in caplog.text


def test_an_actor_in_a_long_step_does_not_say_that_it_lost_a_learner_that_has_ended_training(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture
):
    with connected(learner) as connection:
        learner.source.end()
        wait_until(lambda: connection.ended, "the end of the policies")
        learner.sink.streams[-1].cancel()
        wait_until(lambda: not streams_of_actors(), "the stream's thread to end")
    assert "lost the learner" not in caplog.text


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("n_relays", [0, 1, 2])
def test_an_actor_whose_rollout_waits_for_room_leaves_in_words(n_relays: int, fails: bool):
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve_learner(queue=RolloutQueue(2)))
        address = learner.address
        for _ in range(n_relays):
            address = stack.enter_context(relaying(address)).address
        with LearnerConnection(address, offer("a")) as connection:
            connection.join()
            for sequence in (1, 2):
                assert connection.wait_for_credit(1, DEADLINE_S)
                connection.send(make_rollout(sequence, actor_id="a"))
            wait_until(lambda: learner.queue.size == 2 and connection.drain(0.0) == 1, "the queue to be full")
            if fails:
                connection.fail(ActorFailure(exception_type="ValueError", message="no licence", traceback=""))
        expected = ActorState.FAILED if fails else ActorState.LEFT
        wait_until(lambda: learner.info("a").state is expected, "the goodbye", DEADLINE_S)


@pytest.mark.parametrize("nonces", [(1, 2), (0, 0)], ids=["another", "one that does not say who it is"])
def test_drops_the_policy_after_reconnecting_to_another_learner(learner: FakeLearner, nonces: tuple[int, int]):
    learner.sink.learner_nonce = nonces[0]
    with connected(learner) as connection:
        assert not connection.take_policy()[1]["w"].any()
        learner.sink.learner_nonce = nonces[1]
        # of the same version, so that asking for what is newer would bring nothing
        learner.source.publish(5, {"w": np.ones(3, np.float32)})
        reconnect(learner, connection)
        assert connection.take_policy()[1]["w"].all(), "versions of different learners cannot be compared"


def test_policies_come_with_answers_and_by_the_subscription_and_the_newest_counts(learner: FakeLearner):
    def policy(version: int) -> EncodedPolicy:
        return encode_policy(version, {"w": np.full(3, version, np.float32)})

    def newest() -> tuple[float, ...]:
        version, state, _ = connection.take_policy()
        return version, *state["w"]

    with connected(learner) as connection:
        assert newest() == (5, 0, 0, 0)
        learner.sink.policy = policy(8)
        connection.send(make_rollout(1))
        wait_until(lambda: connection.wait_for_credit(5, 0.1), "the answer")
        assert newest() == (8, 8, 8, 8), "it came before the credit"
        learner.sink.policy = policy(7)
        connection.send(make_rollout(2))
        wait_until(lambda: connection.wait_for_credit(6, 0.1), "the answer")
        assert newest()[0] == 8
        learner.source.publish(9, {"w": np.full(3, 9, np.float32)})
        wait_until(lambda: newest() == (9, 9, 9, 9), "the subscription's")
        reconnect(learner, connection)
    held = learner.sink.held_versions
    assert held[0] in (0, 5)
    assert [version for version in held[1:] if version is not None] == [9], "a new stream says which one it has"


def test_an_actor_that_asks_for_other_encodings_takes_policies_by_its_subscription_only(learner: FakeLearner):
    learner.sink.policy = encode_policy(8, {"w": np.zeros(3, np.float32)})
    with connected(learner, encodings=ENCODINGS["delta"]) as connection:
        assert connection.take_policy()[0] == 5
    assert learner.sink.held_versions == []


def test_waits_for_credential_files_that_are_being_replaced(learner: FakeLearner, tmp_path: Path, caplog):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    security = ClientSecurity(token_file=token)
    with connected(learner, security=security) as connection:
        token.unlink()
        broken = len(learner.sink.streams)
        learner.sink.streams[-1].cancel()
        wait_until(lambda: "cannot be read (No such file or directory)" in caplog.text, "an attempt without the file")
        token.write_text("0123456789abcdef")
        learner.sink.wait_for(lambda: len(learner.sink.streams) > broken)
        assert connection.wait_for_credit(1, DEADLINE_S)


def test_raises_if_credential_files_are_wrong_at_the_first_join(learner: FakeLearner, tmp_path: Path):
    security = ClientSecurity(token_file=tmp_path / "missing")
    with LearnerConnection(learner.address, offer(), security=security) as connection:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            connection.join()


def play(connection: LearnerConnection, n_rollouts: int) -> None:
    """Sends rollouts as an actor does, each when there is credit for it."""
    for sequence in range(1, n_rollouts + 1):
        wait_until(lambda: connection.wait_for_credit(sequence, 0.1), "credit")  # noqa: B023 - used at once
        connection.send(make_rollout(sequence))
    assert connection.drain(DEADLINE_S) == 0


def damage(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, hits: Callable[[int], bool]) -> None:
    """Flips the first bit of some of the messages that a function seals."""
    sealed, count = getattr(module, name), itertools.count()

    def seal(*arguments: object) -> bytes:
        message = bytearray(sealed(*arguments))
        if hits(next(count)):
            message[0] ^= 1
        return bytes(message)

    monkeypatch.setattr(module, name, seal)


def quick() -> Iterator[float]:
    return itertools.repeat(0.01)


@pytest.mark.parametrize("direction", ["to the learner", "to the actor"])
def test_damaged_messages_are_sent_again_in_both_directions(monkeypatch, direction: str):
    monkeypatch.setattr(reconnects, "backoff_delays", quick)

    def some(number: int) -> bool:
        return number % 4 == 2

    if direction == "to the actor":
        damage(monkeypatch, rollout_service, "_answer", some)
    else:
        damage(monkeypatch, rollout_codec, "seal", some)
    with serve() as learner, LearnerConnection(learner.address, offer()) as connection:
        learner.sink.resumes = True
        learner.source.publish(1, {"w": np.zeros(3, np.float32)})
        connection.join()
        play(connection, 12)
        assert len(learner.sink.streams) > 2
        assert [rollout.sequence for rollout in learner.sink.rollouts] == list(range(1, 13))


def test_a_policy_whose_answer_was_lost_comes_with_the_next_stream_or_the_next_subscription(monkeypatch):
    monkeypatch.setattr(reconnects, "backoff_delays", quick)
    policies = PolicyPublisher({}, PolicySpec(), seed=0)
    rule = CreditRule(
        policy_version=lambda: policies.version,
        credit_lag=0,
        take_policy=policies.take,
        sent_version=policies.sent_version,
        want_policy=policies.want,
        pause_policies=policies.pause,
    )
    queue, answered = RolloutQueue(2), []
    sealed = rollout_service.seal_joined

    def lose_the_first_with_version_2(*pieces: bytes) -> bytes:
        """Every answer with a policy is sealed by this."""
        message = bytearray(sealed(*pieces))
        answer = rollout_pb2.StreamRolloutsResponse.FromString(bytes(message))
        if answer.policy.version == 2:
            answered.append(answer.acknowledged_sequence)
            message[0] ^= len(answered) == 1
        return bytes(message)

    monkeypatch.setattr(rollout_service, "seal_joined", lose_the_first_with_version_2)
    with (
        contextlib.closing(policies),
        serve_learner(queue=queue, rule=rule, policies=policies) as learner,
        LearnerConnection(learner.address, offer()) as connection,
    ):
        policies.publish({"w": np.ones(3, np.float32)})
        policies.settle()
        connection.join()
        for sequence in (1, 2):
            wait_until(lambda sequence=sequence: connection.wait_for_credit(sequence, 0.1), "credit")
            connection.send(make_rollout(sequence))
        wait_until(lambda: queue.n_waiting == 1, "the second rollout to wait for room")
        policies.publish({"w": np.full(3, 2, np.float32)})
        policies.settle()
        learner.take(1)
        wait_until(lambda: connection.wait_for_credit(3, 0.1), "credit, and the policy that it asks for")
        assert connection.take_policy()[0] == 2
    # The stream is opened anew, and so is the subscription: the one that is first brings it.
    assert answered in ([2, 2], [2])


def test_a_lost_rollout_is_sent_again(monkeypatch):
    monkeypatch.setattr(reconnects, "backoff_delays", quick)
    encode, count = rollout_uplink.RolloutEncoder.encode, itertools.count()
    monkeypatch.setattr(
        rollout_uplink.RolloutEncoder, "encode", lambda *args: iter(()) if next(count) == 3 else encode(*args)
    )
    with serve() as learner, LearnerConnection(learner.address, offer()) as connection:
        learner.sink.resumes = learner.sink.refuses_gaps = True
        learner.source.publish(1, {"w": np.zeros(3, np.float32)})
        connection.join()
        play(connection, 8)
        assert len(learner.sink.streams) == 2
        assert [rollout.sequence for rollout in learner.sink.rollouts] == list(range(1, 9))


@pytest.mark.parametrize("n_relays", [0, 1])
def test_an_actor_that_waits_for_its_places_in_a_round_misses_nothing(monkeypatch: pytest.MonkeyPatch, n_relays: int):
    skew_s = 0.0
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skew_s))
    rounds = Rounds(1)
    rounds.begin(1)
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve_learner(rule=CreditRule(rounds=rounds)))
        address = learner.address if not n_relays else stack.enter_context(relaying(learner.address)).address
        connection = stack.enter_context(LearnerConnection(address, offer()))
        incarnation = connection.join().incarnation
        wait_until(lambda: connection.wait_for_credit(1, 0.1), "credit")
        connection.send(make_rollout(1))
        wait_until(lambda: rounds.n_waiting == 1, "the actor to wait for places")
        for skew_s in (16.0, 32.0, 48.0):  # noqa: B007 - the clock reads it
            assert not connection.wait_for_credit(2, 0.1)
        answer = learner.intake.join(offer(incarnation=incarnation))
        assert (answer.acknowledged_sequence, answer.awaiting_s) == (1, 0.0)
        assert connection.is_open
        assert rounds.n_waiting == 1, "the stream is the same"
        learner.source.publish(2, {"w": np.zeros(3, np.float32)})
        rounds.begin(2)
        wait_until(lambda: connection.wait_for_credit(2, 0.1), "credit")
