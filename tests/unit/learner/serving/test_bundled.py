import threading
from collections import deque
from collections.abc import Callable

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.serving.bundled import QueuedIntakeStream, ThreadedIntakeStream
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.rounds import Rounds
from rollcast.services.errors import NotReadyError, RollcastError
from rollcast.services.joining.join import Relay
from rollcast.services.streams.bundled_stream import Answer
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import always, make_rollout
from tests.unit.learner.serving.intakes import Intake, offer

RELAY = Relay("rack-1", 7)


class Bundled:
    """A stream behind a relay, with the learner's answers, and what the thread that answers is asked to do."""

    def __init__(self, intake: Intake, actor_id: str = "a") -> None:
        self.answers: list[Answer] = []
        self.to_do: deque[Callable[[], None]] = deque()
        agreement = intake.intake.join(offer(actor_id=actor_id, process_nonce=ord(actor_id), via=(RELAY,)))
        self.stream = intake.intake.open_bundled(
            agreement.actor_id,
            agreement.incarnation,
            relay=RELAY,
            peer="",
            answer=self.answers.append,
            later=self.to_do.append,
            cancel=lambda: None,
        )
        self.actor_id = actor_id

    def submit(self, sequence: int) -> None:
        self.stream.submit(make_rollout(sequence, actor_id=self.actor_id), is_active=always)

    def do_all(self) -> None:
        while self.to_do:
            self.to_do.popleft()()

    def acknowledged(self) -> list[int]:
        return [-1 if isinstance(answer, RollcastError) else answer.acknowledged_sequence for answer in self.answers]


def taken(intake: Intake) -> tuple[str, int] | None:
    piece = intake.queue.get(1 << 20, 0.0)
    return piece and (piece.rollout.actor_id, piece.rollout.sequence)


def with_one_that_waits() -> tuple[Intake, Bundled]:
    """A full queue, with a rollout of actor `a` in it, and an actor `b` whose rollout waits for its turn."""
    intake = Intake(capacity=2)
    first, second = Bundled(intake, "a"), Bundled(intake, "b")
    first.submit(1)
    second.submit(1)
    assert (first.acknowledged(), second.acknowledged()) == ([0, 1], [0])
    return intake, second


def test_with_room_a_rollout_is_answered_at_once_and_without_another_thread():
    one = Bundled(Intake())
    assert isinstance(one.stream, QueuedIntakeStream)
    one.submit(1)
    one.submit(2)
    assert one.acknowledged() == [0, 1, 2]
    assert not one.to_do


def test_without_room_a_rollout_waits_for_its_turn_and_no_thread_with_it():
    threads = set(threading.enumerate())
    intake, second = with_one_that_waits()
    assert threads.issuperset(threading.enumerate())
    assert taken(intake) == ("a", 1)
    second.do_all()
    assert second.acknowledged() == [0, 1]
    assert intake.registry.infos()[1].rollouts == 1
    assert taken(intake) == ("b", 1)


def test_the_next_rollout_of_an_actor_waits_for_the_one_before():
    intake, second = with_one_that_waits()
    assert taken(intake) == ("a", 1)
    second.submit(2)
    assert second.acknowledged() == [0]
    second.do_all()
    assert second.acknowledged() == [0, 1]
    assert taken(intake) == ("b", 1)
    second.do_all()
    assert second.acknowledged() == [0, 1, 2]
    assert taken(intake) == ("b", 2)


def test_a_stream_that_is_closed_while_its_rollout_waits_takes_it_back():
    intake, second = with_one_that_waits()
    second.stream.close(clean=False)
    assert taken(intake) == ("a", 1)
    assert taken(intake) is None
    second.do_all()
    assert second.acknowledged() == [0], "a stream that has ended takes no answer"
    again = Bundled(intake, "b")
    again.submit(1)
    assert again.acknowledged() == [0, 1]
    assert taken(intake) == ("b", 1)
    assert taken(intake) is None


def test_a_rollout_whose_turn_came_just_before_its_stream_was_closed_counts_once():
    intake, second = with_one_that_waits()
    assert taken(intake) == ("a", 1)
    second.stream.close(clean=False)  # before the thread that answers has come to it
    second.do_all()
    again = Bundled(intake, "b")
    assert again.acknowledged() == [1]
    again.submit(1)
    assert intake.intake.duplicate_rollouts == 1
    assert taken(intake) == ("b", 1)
    assert taken(intake) is None


def test_a_queue_that_is_closed_ends_the_waits():
    intake, second = with_one_that_waits()
    intake.queue.close()
    second.do_all()
    assert isinstance(second.answers[-1], NotReadyError)
    second.stream.close(clean=False)


def test_who_waits_at_the_end_of_training_hears_of_it():
    intake, second = with_one_that_waits()
    intake.intake.end_training()
    intake.queue.close()
    second.do_all()
    assert second.answers[-1].end_of_training


def test_an_unexpected_failure_ends_its_actors_stream_alone():
    intake = Intake()
    one = Bundled(intake)
    intake.queue.offer = None
    one.submit(1)
    assert "the learner failed on a rollout" in str(one.answers[-1])


def test_waits_for_other_actors_have_a_thread_of_their_own():
    rounds = Rounds(4)
    rounds.begin(1)
    intake = Intake(rule=CreditRule(rounds=rounds))
    one = Bundled(intake)
    assert isinstance(one.stream, ThreadedIntakeStream)
    one.stream.submit(make_rollout(1, policy_version=1), is_active=always)
    wait_until(lambda: taken(intake) == ("a", 1), "the rollout")
    wait_until(lambda: one.acknowledged() == [0, 1], "the answer, since the round has room for another")
    one.stream.close(clean=True)


def test_turns_that_come_while_their_streams_are_closed_lose_nothing_and_repeat_nothing():
    intake = Intake(capacity=2)
    for attempt in range(1, 101):
        first, second = Bundled(intake, "a"), Bundled(intake, "b")
        first.submit(attempt)
        second.submit(second.stream.progress().acknowledged_sequence + 1)
        got: list[tuple[str, int] | None] = []
        taking = threading.Thread(target=lambda got=got: got.extend(taken(intake) for _ in range(2)))
        taking.start()
        second.stream.close(clean=False)
        taking.join(DEADLINE_S)
        first.stream.close(clean=False)
        rest = taken(intake)
        came = [one for one in (*got, rest) if one is not None]
        again = Bundled(intake, "b")
        acknowledged = again.stream.progress().acknowledged_sequence
        assert came.count(("b", acknowledged)) == (len(came) == 2), "what is acknowledged has come, and nothing else"
        again.stream.close(clean=False)


def test_actors_behind_a_relay_report_their_time_half_as_often():
    intake = Intake(run_history=RunHistory())
    direct, behind = (intake.intake.join(offer(actor_id=name, via=via)) for name, via in (("a", ()), ("b", (RELAY,))))
    assert (direct.activity_interval_s, behind.activity_interval_s) == (1.0, 2.0)
    assert Bundled(intake, "b").stream.joined.activity_interval_s == 2.0
