"""Served actors whose next batch is assembled while the trainer is away: no rule of theirs changes."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.batching.assembly import AssembledBatch, Assembly
from rollcast.learner.batching.collector import LOOK_S
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.experience.experience import FreshExperience
from rollcast.learner.history.run_history import RunHistory
from rollcast.services.errors import CollectInterruptedError, CollectTimeoutError
from rollcast.services.joining.activity import ActingState
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from tests.dialled import DialledActor
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import CARTPOLE_LIKE

BATCH, N_ENVS = 4, 2
THREAD = "rollcast-batches"
TWO_SUBSTEPS = {
    key: SubstepSpaces(observation=Box(-1, 1, (4,), np.float32), action=Discrete(2), n_agents=1) for key in "ab"
}


MakeActors = Callable[..., RemoteDistributedActors]


@pytest.fixture
def make_actors() -> Iterator[MakeActors]:
    made: list[RemoteDistributedActors] = []

    def make(*, spaces: EnvironmentSpaces = CARTPOLE_LIKE, factor: float = 2.0, **options: object):
        policy = TorchPolicy(spaces, PolicySpec(hidden_sizes=(4,)))
        serving = ServingOptions(**{"assemble_ahead": True, "addresses": ("127.0.0.1:0",), **options})
        actors = RemoteDistributedActors(policy, 3, BATCH, factor, envs_per_actor=N_ENVS, serving=serving)
        actors.start()
        made.append(actors)
        return actors

    yield make
    for actors in made:
        actors.cancel_waits()
        actors.stop()
    assert not thread_is_there()


def dial(actors: RemoteDistributedActors, actor_id: str = "a", **options: object) -> DialledActor:
    return DialledActor(actors.addresses[0], actor_id, spaces=actors.policy.spaces, n_envs=N_ENVS, **options)


def after_one_batch(make_actors: MakeActors, **options: object) -> tuple[RemoteDistributedActors, DialledActor]:
    """Returns actors of which one batch was collected, and the actor that has sent it."""
    actors = make_actors(**options)
    stream = dial(actors)
    stream.send(1, 2)
    assert collect(actors) == [1, 2]
    return actors, stream


def names(actors: RemoteDistributedActors) -> list[int]:
    return [name.sequence for name in actors.batch_names]


def collect(actors: RemoteDistributedActors) -> list[int]:
    actors.collect_outputs("cpu")
    return names(actors)


def cast(actors: RemoteDistributedActors) -> None:
    actors.broadcast_updated_policy(actors.policy.state_arrays())


def thread_is_there() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the thread has filled a batch; the trainer's next turn begins after it has put the batch down."""
    is_assembled, finish = threading.Event(), Assembly.finish

    def finish_and_tell(assembly: Assembly) -> AssembledBatch:
        batch = finish(assembly)
        if threading.current_thread().name == THREAD:
            is_assembled.set()
        return batch

    monkeypatch.setattr(Assembly, "finish", finish_and_tell)
    return is_assembled


def test_assembling_ahead_gives_no_credit(make_actors: MakeActors, assembled: threading.Event):
    """The bound on staleness counts what is assembled as queued: no second credit is given in its place."""
    actors, stream = after_one_batch(make_actors, factor=1.0)
    stream.send(3, 4)
    assert assembled.wait(DEADLINE_S)
    assert stream.progress.credit_sequence == 5
    collect(actors)
    stream.send(5)
    assert stream.progress.credit_sequence == 7


def test_a_checkpoint_has_what_was_learnt_from_and_nothing_that_is_assembled(
    make_actors: MakeActors, assembled: threading.Event, tmp_path: Path
):
    durable = DurableRollouts(tmp_path, max_bytes=1 << 30, ask_for_checkpoint=lambda: None)
    actors = make_actors(durable=durable)
    source, stream = FreshExperience(actors), dial(actors)
    stream.send(1, 2)
    batch = source.next("cpu").batch
    stream.send(3, 4)
    assert assembled.wait(DEADLINE_S)
    source.learnt(batch, None)
    state = actors.state()
    assert state["log"]["open_runs"] == ((2, 3),)
    assert state["actors"]["a"]["taken_sequence"] == 2
    source.learnt(source.next("cpu").batch, None)
    assert actors.state()["log"]["open_runs"] == ()


def test_trajectories_without_a_transition_are_replaced_in_their_round(make_actors: MakeActors):
    actors = make_actors(on_policy=True, collect_timeout_s=20.0)
    stream = dial(actors)
    valid = np.array([[True, False]] * 3)
    player = threading.Thread(target=stream.send, args=(1, 2, 3, 4), kwargs={"valid": valid})
    player.start()
    try:
        assert collect(actors) == [1, 2, 3, 4], "two rollouts have as many trajectories as the batch, half of them idle"
        cast(actors)  # the next round, in which the last one is acknowledged
    finally:
        actors.stop()
        player.join()


def test_interrupting_ends_collecting_even_if_a_batch_is_ready(
    make_actors: MakeActors, assembled: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rollcast.learner.actors.served.LOOK_S", -1.0)  # it looks each time
    actors, stream = after_one_batch(make_actors)
    stream.send(3, 4)
    assert assembled.wait(DEADLINE_S)
    actors.interrupt()
    with pytest.raises(CollectInterruptedError):
        actors.collect_outputs("cpu")


def test_a_wait_that_is_too_long_ends_with_who_is_waited_for(make_actors: MakeActors):
    actors, stream = after_one_batch(make_actors, collect_timeout_s=0.3)
    stream.send(3)
    with pytest.raises(CollectTimeoutError, match=r"learner waits for rollouts from .*a has been quiet"):
        actors.collect_outputs("cpu")


@pytest.mark.slow
def test_a_rollout_that_is_being_played_may_take_longer(make_actors: MakeActors):
    timeout_s = 0.3
    actors = make_actors(collect_timeout_s=timeout_s, run_history=RunHistory())
    stream = dial(actors, acting_state=ActingState.ACTING)
    wait_until(lambda: actors.actor_infos[0].acting_state, "its first report")
    with ThreadPoolExecutor() as pool:
        collecting = pool.submit(actors.collect_outputs, "cpu")
        wait_until(lambda: actors.waiting.current()[1] > timeout_s + 2 * LOOK_S, "the learner to wait for long")
        assert not collecting.done()
        stream.acting_state = ActingState.SENDING
        with pytest.raises(CollectTimeoutError, match="a has been quiet"):
            collecting.result(DEADLINE_S)


@pytest.mark.slow
def test_a_rollout_that_is_said_to_be_played_for_ever_ends_the_wait(
    make_actors: MakeActors, monkeypatch: pytest.MonkeyPatch
):
    """Actors in other languages need not end a step that hangs."""
    monkeypatch.setattr("rollcast.learner.waiting.DEFAULT_STEP_TIMEOUT_S", 0.1)
    actors = make_actors(collect_timeout_s=0.3, run_history=RunHistory())
    dial(actors, acting_state=ActingState.ACTING)
    wait_until(lambda: actors.actor_infos[0].acting_state, "its first report")
    with ThreadPoolExecutor() as pool:
        collecting = pool.submit(actors.collect_outputs, "cpu")
        try:
            with pytest.raises(CollectTimeoutError, match="a has been quiet"):
                collecting.result(DEADLINE_S)
        finally:
            actors.interrupt()


def test_metrics_say_how_many_batches_were_ready(make_actors: MakeActors, assembled: threading.Event):
    actors, stream = after_one_batch(make_actors)
    assert actors.metrics()["assembly/ready_fraction"] == 0.0
    stream.send(3, 4)
    assert assembled.wait(DEADLINE_S)
    collect(actors)
    assert actors.metrics()["assembly/ready_fraction"] == 1.0
    assert actors.metrics() == {}


@pytest.mark.parametrize(
    ("options", "is_there"),
    [
        ({}, True),
        ({"assemble_ahead": False}, False),
        ({"assemble_ahead": None}, False),
        ({"max_policy_lag": 3}, True),
        ({"on_policy": True}, False),
        ({"spaces": TWO_SUBSTEPS, "max_policy_lag": 3}, False),
    ],
)
def test_there_is_no_thread_where_it_cannot_help(make_actors: MakeActors, options: dict[str, object], is_there: bool):
    actors = make_actors(**options)
    actors.interrupt()
    with pytest.raises(CollectInterruptedError):
        actors.collect_outputs("cpu")
    assert thread_is_there() is is_there


def test_a_restart_begins_with_nothing_assembled(make_actors: MakeActors, assembled: threading.Event):
    actors, stream = after_one_batch(make_actors)
    stream.send(3, 4)
    assert assembled.wait(DEADLINE_S)
    actors.stop()
    assert not thread_is_there()
    actors.start()
    assert actors.queue_size == 0
    stream = dial(actors, "b")
    stream.send(1, 2, actor_id="b")
    assert collect(actors) == [1, 2]


def test_a_credit_names_the_oldest_policy_whose_rollout_is_not_stale_from_its_start(make_actors: MakeActors):
    # An actor that has lost a version would otherwise play with an older one for ever.
    actors = make_actors(max_policy_lag=2)
    for _ in range(4):
        cast(actors)
    assert actors.policy_version == 5
    assert dial(actors).progress.min_policy_version == 3


def test_does_not_ask_all_actors_whom_it_waits_for_after_each_stale_rollout(
    make_actors: MakeActors, monkeypatch: pytest.MonkeyPatch
):
    n_stale = 8
    actors = make_actors(max_policy_lag=0, factor=9.0)
    cast(actors)
    stream = dial(actors)
    stream.send(*range(1, 1 + n_stale), policy_version=1)
    stream.send(1 + n_stale, policy_version=2)
    n_asked = 0
    explain_wait = actors.explain_wait

    def count_and_explain() -> str:
        nonlocal n_asked
        n_asked += 1
        return explain_wait()

    monkeypatch.setattr(actors, "explain_wait", count_and_explain)
    assert actors.next_slice(8).rollout.sequence == 1 + n_stale
    assert n_asked < n_stale - 1, "at most every quarter of a second"
