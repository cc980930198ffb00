"""Every limit of the contract, met over a real connection: a status code, and a detail that names the limit."""

import dataclasses
import re

import numpy as np
import pytest

from rollcast.learner.replay.served import serve_buffers
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import InvalidInputError, LimitExceededError
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.joining.join_codec import join_offer_to_proto
from rollcast.services.limits import limits
from rollcast.services.limits.limits import MAX_WAITING_ROLLOUTS
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import EncodedPolicy, PolicyBase
from rollcast.services.policies.delta import encode_delta
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.kept import KeptPolicies
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.v1 import learner_pb2, policy_pb2, replay_pb2, rollout_pb2, space_pb2, tensor_pb2
from tests.attacks.limited_calls import ACT, EXHAUSTED, INVALID, JOIN, OPENING, REPORT, SAMPLE, STREAM, WATCH, answer_to
from tests.integration.learner_fakes import offer, serve
from tests.integration.test_replay_service import SPACES as REPLAY_SPACES
from tests.integration.test_replay_service import T, filled_buffer
from tests.policies import SpoiltPolicy, message_of
from tests.rollouts import make_rollout


@pytest.fixture
def address():
    """A learner with a replay buffer that nobody breaks."""
    replay = serve_buffers({"0": filled_buffer(n_rollouts=0)}, REPLAY_SPACES, n_rollout_steps=T)
    with serve(replay=replay) as learner:
        learner.source.publish(1, {"w": np.zeros(1, np.float32)})
        with LearnerClient(learner.address) as client:
            client.join(offer())
        yield learner.address


def join(**changes):
    request = join_offer_to_proto(offer("other"))
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def join_with(space, *, n_agents=0):
    request = join()
    request.substeps[0].observation.CopyFrom(space)
    request.substeps[0].n_agents = n_agents
    return request


def join_through(n_relays):
    request = join()
    request.via.extend(rollout_pb2.Relay(relay_id=f"r{i}", nonce=i + 1) for i in range(n_relays))
    return request


def nested(depth):
    space = space_pb2.Space(discrete=space_pb2.Discrete(n=2))
    for _ in range(depth):
        space = space_pb2.Space(tuple=space_pb2.TupleSpace(members=[space]))
    return space


def keyed(key):
    return space_pb2.Space(dict=space_pb2.DictSpace(members=[space_pb2.NamedSpace(key=key, space=nested(0))]))


def rollout(**changes):
    header = rollout_to_proto(make_rollout())
    header.MergeFrom(rollout_pb2.Rollout(**changes))
    return rollout_pb2.StreamRolloutsRequest(rollout=header)


def large_body():
    (message,) = RolloutEncoder().encode(make_rollout())
    request = rollout_pb2.StreamRolloutsRequest.FromString(message)
    request.ClearField("digest")
    request.body = bytes((1 << 20) + 1)
    return request


def statistic(**changes):
    return rollout_pb2.EventStatistic(**({"event": "x", "epoch": [rollout_pb2.EpochStatistic(reduction=1)]} | changes))


def observation(rank):
    tensor = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1] * rank, data=bytes(4))
    return policy_pb2.ActRequest(observation=[tensor_pb2.NamedTensor(path="", tensor=tensor)])


VALUE = rollout_pb2.EventValue(statistic=0, value=1.0)
MET = {
    "max_frame_bytes": (STREAM, [OPENING, large_body()], EXHAUSTED),
    "max_rank": (ACT, [observation(33)], INVALID),
    "max_space_depth": (JOIN, [join_with(nested(17))], INVALID),
    "max_space_elements": (
        JOIN,
        [join_with(space_pb2.Space(multi_binary=space_pb2.MultiBinary(shape=[1 << 24])))],
        INVALID,
    ),
    "max_space_leaves": (
        JOIN,
        [join_with(space_pb2.Space(tuple=space_pb2.TupleSpace(members=[nested(0)] * 1025)))],
        INVALID,
    ),
    "max_key_length": (JOIN, [join_with(keyed("k" * 257))], INVALID),
    "max_agents": (JOIN, [join_with(nested(0), n_agents=4097)], INVALID),
    "max_envs_per_actor": (JOIN, [join(n_envs=65537)], INVALID),
    "max_relays_in_a_row": (JOIN, [join_through(5)], EXHAUSTED),
    "max_actor_id_length": (JOIN, [join(actor_id="a" * 129)], INVALID),
    "max_network_length": (JOIN, [join(network="n" * 513)], INVALID),
    "max_event_statistics": (STREAM, [OPENING, rollout(event_statistics=[statistic()] * 257)], INVALID),
    "max_values_per_episode": (
        STREAM,
        [OPENING, rollout(event_statistics=[statistic()], events=[VALUE] * 1025)],
        INVALID,
    ),
    "max_grouping": (
        STREAM,
        [
            OPENING,
            rollout(
                event_statistics=[statistic()],
                events=[rollout_pb2.EventValue(statistic=0, value=1.0, group=["g"] * 9)],
            ),
        ],
        INVALID,
    ),
    "max_name_length": (STREAM, [OPENING, rollout(event_statistics=[statistic(event="e" * 129)])], INVALID),
    "max_batch_bytes": (SAMPLE, [replay_pb2.SampleRequest(batch_size=1 << 30)], EXHAUSTED),
    "max_timeout_s": (SAMPLE, [replay_pb2.SampleRequest(batch_size=1, timeout_s=3601)], INVALID),
    "min_interval_s": (WATCH, [learner_pb2.WatchStatusRequest(interval_s=0.01)], INVALID),
    "max_interval_s": (WATCH, [learner_pb2.WatchStatusRequest(interval_s=3601)], INVALID),
}


@pytest.mark.parametrize("limit", MET)
def test_what_a_client_sends(address, limit):
    method, requests, code = MET[limit]
    assert answer_to(address, method, *requests) == (code, limit)


def test_every_limit_is_met_here():
    declared = {name.lower() for name in vars(limits) if re.match(r"M(AX|IN)_", name)}
    # Forgetting is tried with the registry alone, policies in answers with the subscribers; the rights of relays, in
    # unit/services/rollouts.
    elsewhere = {"max_remembered_actors", "max_credited_policy_bytes", "max_relays", "max_bundle_parts"}
    elsewhere |= {"max_openings_per_s"}
    # unit/services/environments has that of environments that dial in.
    elsewhere |= {"max_episode_value_names"}
    # The limit of an evaluation's episodes is so many times as large; the desk of evaluations refuses too many others.
    elsewhere |= {"max_evaluation_opponents", "max_evaluators"}
    # test_hostile_activity has the rate of reports, and test_floods both lengths, of which nothing is refused.
    elsewhere |= {"max_activity_rate", "max_reason_length", "max_traceback_length"}
    met = {*MET, *POLICIES, *SENT_POLICIES, *elsewhere, *(name.removeprefix("test_") for name in globals())}
    assert declared - met == set()


def test_max_message_bytes(address):
    with LearnerClient(address) as client, pytest.raises(LimitExceededError, match="4194304") as refused:
        client.act({"": np.zeros((400_000, 4), np.float32)})
    assert refused.value.limit == "max_message_bytes"


def policy_of(**changes):
    chunk = policy_pb2.PolicyChunk(**({"version": 1, "count": 1, "total_bytes": 8, "payload": b"x" * 8} | changes))
    message = policy_pb2.GetPolicyResponse(chunk=chunk).SerializeToString()
    return SpoiltPolicy(EncodedPolicy(1, b""), whole=(message,))


SENT_POLICIES = {
    "max_policy_bytes": {"total_bytes": (1 << 30) + 1},
    "max_chunk_bytes": {"total_bytes": (1 << 20) + 1, "payload": bytes((1 << 20) + 1)},
}


@pytest.mark.parametrize("limit", SENT_POLICIES)
def test_a_policy_that_a_learner_sends(limit):
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.source.encoded = policy_of(**SENT_POLICIES[limit])
        with pytest.raises(LimitExceededError) as refused:
            client.get_policy()
    assert refused.value.limit == limit


def test_max_policy_expansion():
    bomb = encode_delta(bytes(1 << 20), None)
    with serve() as learner, LearnerClient(learner.address) as client:
        head = {"version": 1, "encoding": PolicyEncoding.DELTA.value, "file_bytes": 1 << 20}
        messages = (message_of(bomb, **head),)
        # whatever is asked for: who asks again is sent the same
        learner.source.encoded = SpoiltPolicy(EncodedPolicy(1, bytes(1 << 20)), whole=messages, delta={b"": messages})
        with pytest.raises(LimitExceededError) as refused:
            list(client.subscribe_policy(assembler=PolicyAssembler(encodings=[PolicyEncoding.DELTA])))
    assert refused.value.limit == "max_policy_expansion"


@pytest.mark.parametrize("n_bytes", [1, limits.MAX_KEPT_POLICY_BYTES // 4])
def test_max_kept_policies(n_bytes):
    kept = KeptPolicies()
    file = bytes(n_bytes)
    for version in range(1, limits.MAX_KEPT_POLICIES + 9):
        kept.hold(PolicyBase(version, file, b""))
    assert len(kept) == min(limits.MAX_KEPT_POLICIES, limits.MAX_KEPT_POLICY_BYTES // n_bytes)


def test_max_kept_policy_bytes():
    test_max_kept_policies(limits.MAX_KEPT_POLICY_BYTES // 2)


def test_max_evaluation_episodes():
    desk = Evaluations(EvaluationPlan(n_episodes=1, seed=0))
    evaluation = rollout_pb2.Evaluation(returns=[0.0] * 10_001, lengths=[1] * 10_001)
    report = rollout_pb2.ReportEvaluationRequest(actor_id="e", incarnation=1, evaluation=evaluation)
    with serve(evaluators=desk) as learner:
        assert answer_to(learner.address, REPORT, report) == (INVALID, "max_evaluation_episodes")


POLICIES = {
    "max_hidden_layers": ({"hidden_sizes": (1,) * 65}, r"65 hidden layers, the first of .*; expected at most 64"),
    "max_recurrent_size": (
        {"recurrence": "gru", "recurrent_size": 4097},
        "a recurrent_size of 4097; expected 1 to 4096",
    ),
    "max_frame_stack": ({"frame_stack": 65}, "a frame_stack of 65; expected at most 64"),
}


@pytest.mark.parametrize("limit", POLICIES)
def test_a_policy_that_a_learner_agrees_on(limit):
    changes, message = POLICIES[limit]
    with serve() as learner, LearnerClient(learner.address) as client:
        agreement = learner.sink.join(offer())
        learner.sink.joined["a"] = dataclasses.replace(agreement, policy=PolicySpec(**changes))
        with pytest.raises(InvalidInputError, match=message) as refused:
            client.join(offer())
    assert refused.value.limit == limit


def test_max_waiting_rollouts():
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.sink.credit = 0
        client.join(offer())
        uplink = client.open_rollout_stream("a", 1)
        with pytest.raises(LimitExceededError) as refused:
            for sequence in range(1, MAX_WAITING_ROLLOUTS + 2):
                uplink.send(make_rollout(sequence))
        uplink.cancel()
    assert refused.value.limit == "max_waiting_rollouts"
