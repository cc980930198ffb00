import dataclasses
import logging
import threading

import numpy as np
import pytest

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.inserter import ReplayInserter
from rollcast.services.replay.replay import ACTORS
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import CARTPOLE_LIKE, always, make_rollout

pytestmark = pytest.mark.slow

T, B = 3, 2


def make(*, n_envs: int = B, **settings: object) -> tuple[ReplayInserter, ReplayBuffer]:
    given = {"capacity": 100, "min_size": 1, **settings}
    buffer = make_buffer(CARTPOLE_LIKE, n_rollout_steps=T, batch_size=1, n_envs=n_envs, **given)
    return ReplayInserter({FLAT_SUBSTEP: buffer}), buffer


class Putting:
    """A rollout that a thread puts."""

    def __init__(self, inserter: ReplayInserter, rollout: Rollout) -> None:
        self.is_active = True
        self.taken: bool | None = None
        self._thread = threading.Thread(target=self._put, args=(inserter, rollout))
        self._thread.start()

    def _put(self, inserter: ReplayInserter, rollout: Rollout) -> None:
        self.taken = inserter.put(rollout, is_active=lambda: self.is_active)

    def join(self) -> bool | None:
        self._thread.join(DEADLINE_S)
        return self.taken


def test_put_returns_after_insertion():
    inserter, buffer = make()
    assert inserter.reserve(B)
    assert inserter.put(make_rollout(sequence=1), is_active=always, n_reserved=B)
    assert buffer.size == T * B


def test_drops_and_logs_rollout_that_does_not_fit(caplog):
    rollout = make_rollout(sequence=1)
    ended = np.zeros((T, B), np.bool_)
    ended[0, 1] = True
    with caplog.at_level(logging.WARNING):
        assert make()[0].put(dataclasses.replace(rollout, terminated=ended), is_active=always)
    assert "dropped a rollout: rollout 1 of 'a': the episode of environment 1 ended at step 0" in caplog.text


def test_limiter_holds_one_insertion_and_others_queue_behind_it():
    inserter, buffer = make(samples_per_insert=1.0)
    assert inserter.put(make_rollout(sequence=1), is_active=always)
    first, second = (Putting(inserter, make_rollout(sequence=n, actor_id=name)) for n, name in ((2, "a"), (1, "b")))
    wait_until(lambda: buffer.wait_of(ACTORS), "somebody to wait")
    assert len(buffer.info().limiter.waiting) == 1
    for _ in range(2 * T * B):
        buffer.sample(1, timeout_s=10.0)
    assert first.join()
    assert second.join()
    assert buffer.size == 3 * T * B
    assert buffer.wait_of(ACTORS) is None


@pytest.mark.parametrize("end", ["the stream", "the server"])
def test_wait_ends_with_its_stream_or_the_server(end: str):
    inserter, buffer = make(samples_per_insert=1.0)
    assert inserter.put(make_rollout(sequence=1), is_active=always)
    waiting = [Putting(inserter, make_rollout(sequence=n)) for n in (2, 2)]
    wait_until(lambda: buffer.wait_of(ACTORS), "somebody to wait")
    if end == "the server":
        inserter.close()
    for putting in waiting:
        putting.is_active = end == "the server"
    assert [putting.join() for putting in waiting] == [False, False]
    assert buffer.info().limiter.waiting == (), "nobody is said to wait who has gone"
    assert inserter.put(make_rollout(sequence=2), is_active=lambda: False) is False
    assert buffer.size == T * B


def test_half_inserted_rollout_is_completed_not_repeated():
    inserter, buffer = make(n_envs=1, samples_per_insert=1.0)
    putting = Putting(inserter, make_rollout(sequence=1))
    wait_until(lambda: buffer.wait_of(ACTORS), "the second half to wait")
    assert buffer.size == T
    putting.is_active = False
    assert putting.join() is False
    for _ in range(T):
        buffer.sample(1, timeout_s=10.0)
    assert inserter.put(make_rollout(sequence=1), is_active=always), "sent again over the next stream"
    assert buffer.size == 2 * T


def test_rollout_sent_over_two_streams_is_inserted_once():
    inserter, buffer = make(samples_per_insert=1.0)
    assert inserter.put(make_rollout(sequence=1), is_active=always)
    old, new = (Putting(inserter, make_rollout(sequence=2)) for _ in range(2))
    wait_until(lambda: buffer.wait_of(ACTORS), "one of them to wait")
    for _ in range(T * B):
        buffer.sample(1, timeout_s=10.0)
    assert old.join()
    assert new.join()
    assert buffer.size == 2 * T * B
