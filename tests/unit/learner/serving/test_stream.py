import logging
import threading
import weakref

import numpy as np
import pytest

from rollcast.learner.history.points import Sample
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.rounds import Rounds
from rollcast.services.errors import (
    DuplicateSequenceError,
    InvalidRolloutError,
    MissingMessageError,
    NotReadyError,
    TrainingEndedError,
    UnreadableMessageError,
)
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.activity import ActingState, ActorActivity, ActorFailure
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.subscribers import Subscribers
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.status.status import ActorState
from tests.processes import DEADLINE_S
from tests.rollouts import always, make_rollout
from tests.unit.learner.serving.intakes import Intake, offer, passes_nothing_on


def test_a_second_credit_is_backed_by_room_in_the_queue():
    intake = Intake(capacity=4)
    a, b, c = (intake.join_and_open(actor_id=name, process_nonce=index) for index, name in enumerate("abc"))
    assert [stream.progress().credit_sequence for stream in (a, b, c)] == [2, 2, 1]
    a.close(clean=True)
    b.accept(make_rollout(sequence=1), is_active=always)
    assert b.progress().credit_sequence == 3, "the room that a had is free again"
    assert b.progress().acknowledged_sequence == 1
    assert intake.queue.size == 2


@pytest.mark.parametrize(("bounded", "told"), [(True, 7), (False, 0)])
def test_an_actor_wants_the_newest_policy_with_every_credit(bounded: bool, told: int):
    wanted: list[tuple[str, int]] = []
    rule = CreditRule(
        policy_version=lambda: 7,
        credit_lag=0 if bounded else None,
        want_policy=lambda actor_id, version: wanted.append((actor_id, version)),
    )
    stream = Intake(rule=rule).join_and_open()
    assert stream.progress().min_policy_version == told
    assert wanted == [], "the answer is still being sent"
    stream.awaits_message(True)
    assert wanted == [("a", 7)]
    stream.awaits_message(False)
    stream.accept(make_rollout(sequence=1), is_active=always)
    stream.awaits_message(True)
    assert wanted == [("a", 7), ("a", 7)]
    stream.awaits_message(True)
    assert wanted == [("a", 7), ("a", 7)], "it has been told of no other credit"


def test_an_actor_that_asks_hears_which_policy_it_was_sent_and_not_which_is_the_newest():
    intake = Intake(rule=CreditRule(policy_version=lambda: 8, sent_version={"a": 5}.__getitem__))
    assert intake.intake.join(offer()).policy_version == 5, "it may be waiting for room, and is sent none meanwhile"


@pytest.mark.parametrize("bounded", [True, False])
def test_an_answer_takes_the_newest_policy_that_its_actor_can_use(bounded: bool):
    subscribers, wanted = Subscribers(), []
    rule = CreditRule(
        policy_version=lambda: 8,  # on its way
        credit_lag=0 if bounded else None,
        take_policy=subscribers.take,
        want_policy=lambda actor_id, version: wanted.append((actor_id, version)),
    )
    stream = Intake(rule=rule).join_and_open()
    with subscribers.subscription(0, "a"):
        subscribers.offer(encode_policy(7, {"w": np.zeros(1, np.float32)}))
        stream.progress()
        taken = stream.take_policy(holds_version=0)
        stream.awaits_message(True)
    if bounded:
        assert taken is None, "it is to wait for version 8"
        assert wanted == [("a", 8)]
    else:
        assert taken.version == 7
        assert wanted == [("a", 7)], "version 8 may wait for its next answer"


def test_what_was_accepted_is_dropped_on_a_new_stream_and_refused_on_the_same():
    intake = Intake()
    stream = intake.join_and_open()
    stream.accept(make_rollout(sequence=1), is_active=always)
    with pytest.raises(DuplicateSequenceError, match="sent rollout 1 after 1"):
        stream.accept(make_rollout(sequence=1), is_active=always)
    stream.close(clean=False)
    again = intake.join_and_open()
    assert again.progress().acknowledged_sequence == 1
    again.accept(make_rollout(sequence=1), is_active=always)
    again.accept(make_rollout(sequence=2), is_active=always)
    assert intake.queue.size == 4
    assert intake.intake.duplicate_rollouts == 1


def test_what_a_stream_passes_on_while_another_takes_over_is_accepted_once():
    intake = Intake()
    entered, replaced = threading.Event(), threading.Event()

    def put_late(rollout: Rollout, **options: object) -> bool:
        entered.set()
        assert replaced.wait(DEADLINE_S)
        return RolloutQueue.put(intake.queue, rollout, **options)

    intake.queue.put = put_late
    agreement = intake.intake.join(offer())
    old = intake.intake.open_stream(agreement.actor_id, agreement.incarnation, peer="", cancel=replaced.set)
    sending = threading.Thread(target=old.accept, args=(make_rollout(sequence=1),), kwargs={"is_active": always})
    sending.start()
    assert entered.wait(DEADLINE_S)
    new = intake.join_and_open()
    assert new.progress().acknowledged_sequence == 1, "the one before has passed it on in the last moment"
    new.accept(make_rollout(sequence=1), is_active=always)
    sending.join(DEADLINE_S)
    assert (intake.queue.size, intake.intake.duplicate_rollouts) == (2, 1)


def test_a_stream_that_was_replaced_passes_nothing_on():
    intake = Intake()
    old = intake.join_and_open()
    new = intake.join_and_open()
    passes_nothing_on(old)
    assert new.accept(make_rollout(sequence=1), is_active=always).acknowledged_sequence == 1
    assert intake.queue.size == 2


def test_the_end_of_training_is_told_and_nothing_is_taken_any_more():
    intake = Intake()
    stream = intake.join_and_open()
    intake.intake.end_training()
    assert stream.accept(make_rollout(sequence=1), is_active=always).end_of_training
    assert intake.queue.size == 0
    with pytest.raises(TrainingEndedError, match="ended"):
        intake.intake.join(offer(actor_id="b"))


@pytest.mark.parametrize("learner_stops", [False, True])
def test_a_stream_that_the_learner_closes_is_no_loss_to_warn_of(learner_stops: bool, caplog: pytest.LogCaptureFixture):
    intake = Intake()
    stream = intake.join_and_open()
    caplog.set_level(logging.INFO)
    if learner_stops:
        intake.intake.leave_waiting()
    stream.close(clean=False)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        ("INFO", "actor a is left to the next learner")
        if learner_stops
        else ("WARNING", "actor a was lost: its connection broke")
    )


def test_an_actor_that_is_refused_shows_as_refused_until_it_joins_again():
    intake = Intake()
    stream = intake.join_and_open()
    stream.rejected(InvalidRolloutError("column reward holds NaN"))
    stream.close(clean=False)
    (info,) = intake.registry.infos()
    assert (info.state, info.last_error) == (ActorState.REFUSED, "column reward holds NaN")
    assert intake.intake.rejected_rollouts == 1
    assert not intake.registry.n_alive()
    intake.join_and_open()
    assert intake.registry.infos()[0].state is ActorState.STREAMING


@pytest.mark.parametrize("error", [MissingMessageError("a gap"), UnreadableMessageError("no message")])
def test_an_actor_whose_message_was_lost_on_its_way_shows_as_lost(error, caplog):
    intake = Intake()
    stream = intake.join_and_open()
    stream.rejected(error)
    stream.close(clean=False)
    assert intake.registry.infos()[0].state is ActorState.LOST
    assert caplog.records[-1].levelname == "WARNING"
    assert caplog.messages[-1] == "actor a was lost: its connection broke"


def test_a_stream_that_was_replaced_marks_nobody_as_refused():
    intake = Intake()
    old, new = intake.join_and_open(), intake.join_and_open()
    old.rejected(InvalidRolloutError("late"))
    assert intake.registry.infos()[0].state is ActorState.STREAMING
    assert new.accept(make_rollout(sequence=1), is_active=always).acknowledged_sequence == 1


class TestRounds:
    """Streams of actors that play each batch with the policy of the update before."""

    def played(self, sequence: int, version: int) -> Rollout:
        return make_rollout(sequence=sequence, policy_version=version)

    def test_a_new_actor_plays_at_once_until_others_fill_the_round_and_then_with_the_next_policy(self):
        rounds = begun(Rounds(4))
        intake = Intake(rule=CreditRule(rounds=rounds))
        streams = [intake.join_and_open(actor_id=name, process_nonce=index) for index, name in enumerate("abc")]
        progress = [stream.progress() for stream in streams]
        assert [told.min_policy_version for told in progress] == [1, 1, 1]
        assert [told.credit_sequence for told in progress] == [1, 1, 1], "nothing is played ahead"
        for stream in streams[:2]:
            stream.accept(self.played(1, version=1), is_active=always)
        assert intake.join_and_open(actor_id="d", process_nonce=3).progress().min_policy_version == 2

    def test_credit_waits_until_the_next_round_and_the_acknowledgement_does_not(self):
        rounds = begun(Rounds(2))
        stream = Intake(rule=CreditRule(rounds=rounds)).join_and_open()
        told = stream.accept(self.played(1, version=1), is_active=always)
        assert (told.acknowledged_sequence, told.credit_sequence) == (1, 1)
        later, waits = [], threading.Event()

        def is_active() -> bool:
            waits.set()
            return True

        waiting = threading.Thread(target=lambda: later.append(stream.await_credit(is_active=is_active)))
        waiting.start()
        assert waits.wait(DEADLINE_S)
        assert not later
        rounds.begin(2)
        waiting.join(DEADLINE_S)
        assert (later[0].acknowledged_sequence, later[0].credit_sequence, later[0].min_policy_version) == (1, 2, 2)

    def test_an_actor_whose_old_stream_had_the_places_is_called_back(self):
        rounds = begun(Rounds(2))
        intake = Intake(rule=CreditRule(rounds=rounds))
        frozen = intake.join_and_open()
        frozen.accept(self.played(1, version=1), is_active=always)
        rounds.begin(2)
        called_back = []
        again = intake.join_and_open(cancel=lambda: called_back.append("again"))
        assert again.progress().min_policy_version == 3
        frozen.close(clean=False)
        assert called_back == ["again"], "nobody else plays this round"
        again.close(clean=False)
        assert intake.join_and_open().progress().min_policy_version == 2

    def test_wait_for_the_next_round_ends_with_training(self):
        intake = Intake(rule=CreditRule(rounds=begun(Rounds(2))))
        stream = intake.join_and_open()
        stream.accept(self.played(1, version=1), is_active=always)
        told = []
        waiting = threading.Thread(target=lambda: told.append(stream.await_credit(is_active=always)))
        waiting.start()
        intake.intake.end_training()
        waiting.join(DEADLINE_S)
        assert told[0].end_of_training


def begun(rounds: Rounds, version: int = 1) -> Rounds:
    rounds.begin(version)
    return rounds


def test_the_learner_asks_for_an_actors_time_only_if_somebody_remembers_it():
    for run_history, interval_s in ((None, 0.0), (RunHistory(), 1.0)):
        intake = Intake(run_history=run_history)
        assert intake.intake.join(offer()).activity_interval_s == interval_s
        assert intake.join_and_open().joined.activity_interval_s == interval_s


def test_with_hundreds_of_actors_most_report_half_as_often():
    intake = Intake(run_history=RunHistory(), max_actors=256)
    asked = [
        (intake.intake.join(offer(actor_id=f"actor-{i}", process_nonce=i)).activity_interval_s, f"actor-{i}")
        for i in range(256)
    ]
    assert [interval_s for interval_s, _ in asked[:33]] == [1.0] * 33
    assert all(interval_s == 2.0 for interval_s, _ in asked[64:])
    assert sum(1 / interval_s for interval_s, _ in asked) < 0.6 * len(asked)
    for i in (0, 48, 255):
        stream = intake.join_and_open(actor_id=f"actor-{i}", process_nonce=i)
        assert stream.joined.activity_interval_s == asked[i][0], "the stream takes as many as the actor was asked for"


def test_an_actors_report_shows_in_its_info_and_is_no_progress():
    intake = Intake(run_history=RunHistory())
    stream = intake.join_and_open()
    before, progress = intake.registry.infos()[0], stream.progress()
    assert (before.acting_state, before.applied_policy_version) == (None, 0)
    report = ActorActivity(
        state=ActingState.SENDING, seconds=(1.0,) * 6, policy_version=5, answer_p50_s=0.25, answer_p99_s=0.5
    )
    stream.acted(report, is_alone=True)
    info = intake.registry.infos()[0]
    assert (before.answer_p50_s, info.answer_p50_s, info.answer_p99_s) == (0.0, 0.25, 0.5)
    assert (info.acting_state, info.applied_policy_version) == (ActingState.SENDING, 5)
    assert stream.progress() == progress
    assert info.idle_s >= before.idle_s, "it has sent nothing"


def test_an_actors_comings_and_goings_are_remembered():
    run_history = RunHistory()
    intake = Intake(run_history=run_history)
    first = intake.join_and_open()
    first.close(clean=False)
    second = intake.join_and_open()
    second.rejected(InvalidRolloutError("rollout 1 is odd"))
    second.close(clean=False)
    third = intake.join_and_open(process_nonce=2)
    third.fail(ActorFailure(exception_type="ValueError", message="m", traceback="Traceback ...", env_seed=5))
    third.close(clean=True)
    fourth = intake.join_and_open(process_nonce=3)
    fourth.rejected(MissingMessageError("rollout 7 is missing"))
    fourth.close(clean=True)
    found = [(event.severity, event.text, event.detail) for event in run_history.news(None).events]
    assert found == [
        (EventSeverity.INFO, "joined: slot 0, 2 environments", ""),
        (EventSeverity.WARNING, "lost its connection", ""),
        (EventSeverity.INFO, "came back", ""),
        (EventSeverity.ERROR, "a message was refused: rollout 1 is odd", ""),
        (EventSeverity.INFO, "joined again, as process 2 of this name: slot 0, 2 environments", ""),
        (EventSeverity.ERROR, "failed: ValueError: m (environment seed 5)", "Traceback ..."),
        (EventSeverity.INFO, "joined again, as process 3 of this name: slot 0, 2 environments", ""),
        (EventSeverity.WARNING, "a message was refused: rollout 7 is missing", ""),
        (EventSeverity.INFO, "left", ""),
    ]
    assert {event.who for event in run_history.news(None).events} == {"a"}


@pytest.mark.parametrize("process_nonce", [1, 2])
def test_an_actor_keeps_its_lane_if_its_old_stream_ends_after_the_new_one_has_begun(process_nonce: int):
    now = [100.0]
    run_history = RunHistory(clock=lambda: now[0])
    intake = Intake(run_history=run_history)
    old = intake.join_and_open()
    new = intake.join_and_open(process_nonce=process_nonce)
    old.close(clean=False)
    for _ in range(8):
        new.acted(ActorActivity(state=ActingState.ACTING, seconds=(0.0, now[0], *[0.0] * 4)), is_alone=True)
        now[0] += 1.0
        run_history.sample(Sample())
    assert [lane.shares.any() for lane in run_history.news(None).lanes if lane.actor_id == "a"] == [True]


@pytest.mark.parametrize("end", ["alone", "refused", "replaced", "replaced by another process"])
def test_nothing_holds_a_stream_that_has_ended(end: str):
    """A stream that is held, or what ends it, holds its call, which counts among those of its connection."""
    intake, call = Intake(run_history=RunHistory()), threading.Event()
    stream = intake.join_and_open(call.set)
    stream.awaits_message(True)
    if end == "refused":
        stream.rejected(InvalidRolloutError("rollout 1 is odd"))
    elif end != "alone":
        intake.join_and_open(process_nonce=1 if end == "replaced" else 2)
    stream.close(clean=end == "alone")
    held = weakref.ref(stream), weakref.ref(call)
    del stream, call
    assert [one() for one in held] == [None, None]
    assert intake.intake.join(offer(process_nonce=3)).awaiting_s == 0.0


def test_a_stream_that_is_replaced_before_it_has_begun_does_not_begin():
    intake, replaced = Intake(), threading.Event()
    entered, goes_on = intake.refuse_late()

    def open_second() -> None:
        try:
            intake.join_and_open(goes_on.set)
        except NotReadyError as error:
            errors.append(str(error))

    errors: list[str] = []
    first = intake.join_and_open(replaced.set)
    sending = threading.Thread(target=passes_nothing_on, args=(first,))
    second = threading.Thread(target=open_second)
    sending.start()
    assert entered.wait(DEADLINE_S)
    second.start()
    assert replaced.wait(DEADLINE_S)
    third = intake.join_and_open()
    for thread in (sending, second):
        thread.join(DEADLINE_S)
    assert len(errors) == 1
    assert "'a' has opened another stream" in errors[0]
    assert third.progress().credit_sequence


def test_a_stream_that_waits_for_room_holds_its_actor():
    intake = Intake()
    stream = intake.join_and_open()
    assert stream.held_since is None
    stream.awaits_message(True)
    assert stream.held_since is None
    stream.awaits_message(False)
    assert stream.held_since is not None
