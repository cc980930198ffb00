import threading

import gymnasium
import numpy as np
import pytest

from rollcast.learner.ingest.intake import IntakeStream, RolloutIntake
from rollcast.learner.ingest.queue import RolloutQueue
from rollcast.learner.ingest.registry import ActorRegistry
from rollcast.services.errors import (
    DuplicateSequenceError,
    InvalidRolloutError,
    LimitExceededError,
    MissingMessageError,
    NotReadyError,
    ProtocolMismatchError,
    SpacesMismatchError,
    TrainingEndedError,
    UnreadableMessageError,
)
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.join import JoinOffer
from rollcast.services.rollouts.rollouts import ActorFailure, Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from rollcast.services.status.status import ActorState
from tests.processes import wait_until
from tests.rollout_samples import CARTPOLE_LIKE, make_rollout

DEADLINE_S = 10.0


def offer(**changes: object) -> JoinOffer:
    given = {
        "actor_id": "a",
        "process_nonce": 1,
        "spaces": CARTPOLE_LIKE,
        "n_envs": 2,
        "network": "auto",
        "software_version": "1",
    }
    return JoinOffer(**(given | changes))


class Intake:
    """An intake with its queue and registry."""

    def __init__(self, capacity: int = 8) -> None:
        self.queue = RolloutQueue(capacity)
        self.registry = ActorRegistry(max_actors=4, seed=0)
        self.intake = RolloutIntake(
            self.registry, self.queue, spaces=CARTPOLE_LIKE, policy=PolicySpec(), n_rollout_steps=3, envs_per_actor=4
        )

    def join_and_open(self, **changes: object) -> IntakeStream:
        agreement = self.intake.join(offer(**changes))
        return self.intake.open_stream(agreement.actor_id, agreement.incarnation, peer="", cancel=lambda: None)


def always() -> bool:
    return True


def test_an_actor_whose_rollouts_would_be_above_the_limit_is_refused_at_join():
    intake = RolloutIntake(
        ActorRegistry(max_actors=2, join_lease_s=60.0, seed=0),
        RolloutQueue(4),
        spaces=CARTPOLE_LIKE,
        policy=PolicySpec(),
        n_rollout_steps=3,
        envs_per_actor=4,
        max_rollout_bytes=1000,
    )
    intake.join(offer(n_envs=2))
    with pytest.raises(LimitExceededError, match=r"3 steps of 100 environments has \d+ bytes; expected at most 1000"):
        intake.join(offer(actor_id="b", n_envs=100))


def test_join_agrees_on_the_work():
    agreement = Intake().intake.join(offer())
    assert (agreement.slot, agreement.incarnation, agreement.n_rollout_steps) == (0, 1, 3)
    assert agreement.env_seed != agreement.agent_seed


def test_an_actor_steps_its_own_number_of_environments_or_the_learners():
    intake = Intake()
    assert intake.intake.join(offer(n_envs=3)).n_envs == 3
    assert intake.join_and_open(actor_id="b", process_nonce=2, n_envs=0).n_envs == 4
    assert [info.n_envs for info in intake.registry.infos()] == [3, 4]


def test_every_learner_is_another():
    intake = Intake()
    nonces = [intake.intake.join(offer(actor_id=name)).learner_nonce for name in "ab"]
    assert nonces[0] == nonces[1] != 0
    assert Intake().intake.join(offer()).learner_nonce != nonces[0]


def test_who_asks_is_told_for_how_long_the_newest_stream_has_been_awaiting_what_comes_next():
    intake = Intake()
    old = intake.join_and_open()
    assert intake.intake.join(offer()).awaiting_s == 0
    old.awaits_message(True)
    wait_until(lambda: intake.intake.join(offer()).awaiting_s > 0.05, "some time")
    new = intake.join_and_open()
    assert intake.intake.join(offer()).awaiting_s == 0, "the old stream does not count"
    new.awaits_message(True)
    old.close(clean=False)
    wait_until(lambda: intake.intake.join(offer()).awaiting_s > 0.05, "some time")
    new.awaits_message(False)
    assert intake.intake.join(offer()).awaiting_s == 0


def test_join_refuses_other_spaces_and_names_the_place():
    spaces = {
        FLAT_SUBSTEP: SubstepSpaces(
            observation=gymnasium.spaces.Box(-10, 10, (5,), np.float32), action=gymnasium.spaces.Discrete(2)
        )
    }
    with pytest.raises(SpacesMismatchError, match=r"observation.*learner.*actor 'a'"):
        Intake().intake.join(offer(spaces=spaces))


def test_join_refuses_a_network_the_actor_was_not_started_with():
    with pytest.raises(ProtocolMismatchError, match="--network 'mine:net', the learner trains 'auto'"):
        Intake().intake.join(offer(network="mine:net"))


def test_a_second_credit_is_backed_by_room_in_the_queue():
    intake = Intake(capacity=4)
    a, b, c = (intake.join_and_open(actor_id=name, process_nonce=index) for index, name in enumerate("abc"))
    assert [stream.progress().credit_sequence for stream in (a, b, c)] == [2, 2, 1]
    a.close(clean=True)
    b.accept(make_rollout(sequence=1), is_active=always)
    assert b.progress().credit_sequence == 3, "the room that a had is free again"
    assert b.progress().acknowledged_sequence == 1
    assert intake.queue.size == 2


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
    with pytest.raises(NotReadyError, match="was not taken"):
        old.accept(make_rollout(sequence=1), is_active=always)
    assert new.accept(make_rollout(sequence=1), is_active=always).acknowledged_sequence == 1
    assert intake.queue.size == 2


def test_a_stream_that_does_not_give_up_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollcast.learner.ingest.intake._TAKE_OVER_S", 0.05)
    intake = Intake()
    old = intake.join_and_open()
    with old._record.accepting:
        with pytest.raises(NotReadyError, match="still passes a rollout on"):
            intake.join_and_open()
    assert intake.registry.infos()[0].state is ActorState.LOST
    assert intake.join_and_open().accept(make_rollout(sequence=1), is_active=always).acknowledged_sequence == 1


def test_gaps_and_uncredited_rollouts_are_refused():
    stream = Intake().join_and_open()
    with pytest.raises(InvalidRolloutError, match="missing"):
        stream.accept(make_rollout(sequence=2), is_active=always)
    with pytest.raises(LimitExceededError, match="credited up to 2"):
        stream.accept(make_rollout(sequence=9), is_active=always)


def test_a_new_learner_carries_on_with_the_actors_count():
    stream = Intake().join_and_open(incarnation=2, acknowledged_sequence=40)
    assert stream.incarnation == 2
    assert stream.progress().credit_sequence == 42
    assert stream.accept(make_rollout(sequence=41, incarnation=2), is_active=always).acknowledged_sequence == 41


def test_the_end_of_training_is_told_and_nothing_is_taken_any_more():
    intake = Intake()
    stream = intake.join_and_open()
    intake.intake.end_training()
    assert stream.accept(make_rollout(sequence=1), is_active=always).end_of_training
    assert intake.queue.size == 0
    with pytest.raises(TrainingEndedError, match="ended"):
        intake.intake.join(offer(actor_id="b"))


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
def test_an_actor_whose_message_was_lost_on_its_way_shows_as_lost(error):
    intake = Intake()
    stream = intake.join_and_open()
    stream.rejected(error)
    stream.close(clean=False)
    assert intake.registry.infos()[0].state is ActorState.LOST


def test_a_stream_that_was_replaced_marks_nobody_as_refused():
    intake = Intake()
    old, new = intake.join_and_open(), intake.join_and_open()
    old.rejected(InvalidRolloutError("late"))
    assert intake.registry.infos()[0].state is ActorState.STREAMING
    assert new.accept(make_rollout(sequence=1), is_active=always).acknowledged_sequence == 1


def test_failures_are_kept_for_the_list_of_actors():
    intake = Intake()
    stream = intake.join_and_open()
    failure = ActorFailure(exception_type="ValueError", message="boom", traceback="at home", env_seed=3)
    stream.fail(failure)
    stream.close(clean=True)
    (info,) = intake.registry.infos()
    assert info.state is ActorState.FAILED
    assert "boom" in info.last_error


def test_after_a_resume_nothing_is_taken_twice_and_nothing_that_is_left_is_refused():
    before = Intake()
    stream = before.join_and_open()
    for sequence in (1, 2, 3):
        stream.accept(make_rollout(sequence=sequence), is_active=always)
    for sequence in (1, 2):
        piece = before.queue.get(2, 0.0)
        assert piece is not None
        assert piece.rollout.sequence == sequence
        before.registry.taken(piece.rollout)
    after = Intake()
    after.registry.load_state(before.registry.state())
    # the answer to the second never arrived; the third was answered by nobody
    stream = after.join_and_open(incarnation=1, acknowledged_sequence=1)
    for sequence in (2, 3):
        progress = stream.accept(make_rollout(sequence=sequence), is_active=always)
    assert progress.acknowledged_sequence == 3
    assert after.intake.duplicate_rollouts == 1
    piece = after.queue.get(9, 0.0)
    assert piece is not None
    assert piece.rollout.sequence == 3, "the second is in the checkpoint"
    assert after.queue.size == 0
