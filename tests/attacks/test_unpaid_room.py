"""Room is charged for what comes, and all that it costs, not for what is declared: hollow actors hold nobody back."""

import contextlib
import tracemalloc

import psutil
import pytest

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.rounds import Rounds
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.limits.limits import (
    MAX_ENVS_PER_ACTOR,
    MAX_EVENT_STATISTICS,
    MAX_GROUPING,
    MAX_VALUES_PER_EPISODE,
    Limits,
)
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.v1 import rollout_pb2
from tests.attacks.hostile_clients import HollowActor
from tests.attacks.limited_calls import throttled
from tests.attacks.served_intake import serve_intake
from tests.integration.learner_fakes import SPACES, offer
from tests.processes import DEADLINE_S
from tests.rollouts import make_rollout

N_HOLLOW, N_ROLLOUTS = 40, 50


@pytest.mark.parametrize("plays_in_rounds", [False, True])
def test_forty_hollow_actors_hold_no_honest_one_back(plays_in_rounds: bool):
    """Each declares 11 MB; there is room for two of them. In rounds, each has as many environments as whole batches."""
    limits = Limits(max_rollout_bytes=12 << 20, max_bytes_in_flight=24 << 20)
    queue = RolloutQueue(100)
    rounds = Rounds(2) if plays_in_rounds else None
    if rounds is not None:
        rounds.begin(1)
    with contextlib.ExitStack() as stack:
        client, _ = stack.enter_context(serve_intake(limits, queue, rounds))
        hollow = [
            HollowActor(client.address, offer(f"hollow-{number}", process_nonce=number, n_envs=MAX_ENVS_PER_ACTOR))
            for number in range(N_HOLLOW)
        ]
        for actor in hollow:
            stack.callback(actor.close)
        for actor in hollow:
            assert actor.has_declared.wait(DEADLINE_S)
        client.join(offer("honest"))
        uplink = client.open_rollout_stream("honest", 1)
        stack.callback(uplink.cancel)
        responses = uplink.responses()
        assert next(responses).min_policy_version <= 1
        for sequence in range(1, N_ROLLOUTS + 1):
            uplink.send(make_rollout(sequence, actor_id="honest", policy_version=sequence))
            assert queue.get(2, DEADLINE_S).rollout.actor_id == "honest"
            if rounds is not None:
                rounds.begin(sequence + 1)
            assert next(responses).acknowledged_sequence == sequence
        assert throttled(client) == set()


def episodes(n_events: int = 0) -> list[rollout_pb2.EpisodeStatistics]:
    group = [f"{number}" for number in range(MAX_GROUPING)]
    events = [rollout_pb2.EventValue(statistic=0, value=1.5, group=group)] * n_events
    return [rollout_pb2.EpisodeStatistics(env_index=1, episode_return=0.5, n_steps=300, events=events)] * 6


def statistics(n_statistics: int, n_epochs: int) -> list[rollout_pb2.EventStatistic]:
    declared = rollout_pb2.EventStatistic(event="e", epoch=[rollout_pb2.EpochStatistic()] * n_epochs)
    return [declared] * n_statistics


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy_versions": [2**40] * 6},
        {"episodes": episodes()},
        {"episodes": episodes(n_events=MAX_VALUES_PER_EPISODE), "event_statistics": statistics(1, 1)},
        {
            "event_statistics": statistics(MAX_EVENT_STATISTICS, MAX_EVENT_STATISTICS),
            "events": [rollout_pb2.EventValue(statistic=number) for number in range(MAX_EVENT_STATISTICS)],
        },
    ],
    ids=["plain", "versions", "episodes", "events", "statistics"],
)
def test_what_a_rollout_costs_is_charged_and_not_only_its_tensors(changes):
    held = []
    assembler = RolloutAssembler(
        RolloutShape(SPACES, 3, 2), actor_id="a", incarnation=1, hold=lambda n_bytes, *, completes: held.append(n_bytes)
    )
    header = rollout_to_proto(make_rollout(1, env_seeds=(2**60, 2**60 + 1)))
    header.MergeFrom(rollout_pb2.Rollout(**changes))
    rollouts = []
    # The first ones also make what stays: where the columns lie, and Python's lists of free objects.
    for _ in range(9):
        assembler.add(rollout_pb2.StreamRolloutsRequest(rollout=header))
    held.clear()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        rollouts += [assembler.add(rollout_pb2.StreamRolloutsRequest(rollout=header)) for _ in range(3)]
        n_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(rollouts)
    assert n_bytes <= sum(held) < 40 * n_bytes


def test_a_stream_remembers_where_columns_lie_and_not_the_episodes_beside_them():
    """Sixty-four headers of 1.5 MB were 100 MB for each stream, and more when they were parsed."""
    n_steps, n_envs = 40, 2
    assembler = RolloutAssembler(RolloutShape(SPACES, n_steps, n_envs), actor_id="a", incarnation=1)
    beside = rollout_pb2.Rollout(episodes=episodes(MAX_VALUES_PER_EPISODE), event_statistics=statistics(1, 1))
    before = psutil.Process().memory_info().rss
    for n_final in range(64):
        places = [divmod(number, n_envs) for number in range(n_final)]
        rollout = make_rollout(1, n_steps=n_steps, n_envs=n_envs, final_index=places)
        head, arrays = RolloutEncoder().head_and_arrays(rollout)
        header = rollout_pb2.Rollout.FromString(head)
        header.MergeFrom(beside)
        assert assembler.assemble(header.SerializeToString(), memoryview(b"".join(map(bytes, arrays))))
    assert psutil.Process().memory_info().rss - before < 64 << 20
