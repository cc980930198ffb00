"""Every limit, met over a real connection: a status code, a detail that names the limit, and others are served on."""

import contextlib
import re
import socket
import threading

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from rollcast.v1 import learner_pb2, policy_pb2, replay_pb2, rollout_pb2, space_pb2, tensor_pb2

from actor.connection import LearnerConnection
from learner.actor_registry import ActorRegistry
from learner.replay.served import serve_buffers
from learner.rollout_intake import RolloutIntake
from learner.rollout_queue import RolloutQueue
from services import limits
from services.channel import make_channel
from services.client import LearnerClient
from services.errors import LearnerUnreachableError, LimitExceededError, RollcastError, ThrottledError
from services.join_codec import join_offer_to_proto
from services.limits import MAX_WAITING_ROLLOUTS, Limits
from services.policies import PolicySpec
from services.rollout_codec import RolloutEncoder, rollout_to_proto
from services.server import make_server
from services.weights import EncodedPolicy
from tests.integration.learner_fakes import SPACES, FakeControl, FakeSource, make_rollout, offer, serve
from tests.integration.test_replay_service import SPACES as REPLAY_SPACES
from tests.integration.test_replay_service import T, make_buffer

DEADLINE_S = 20.0
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
JOIN, STREAM = "/rollcast.v1.RolloutService/Join", "/rollcast.v1.RolloutService/StreamRollouts"
WATCH, STATUS = "/rollcast.v1.LearnerService/WatchStatus", "/rollcast.v1.LearnerService/GetStatus"
ACT, SAMPLE = "/rollcast.v1.PolicyService/Act", "/rollcast.v1.ReplayService/Sample"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
OPENING = rollout_pb2.StreamRolloutsRequest(open=rollout_pb2.OpenStream(actor_id="a", incarnation=1))


@pytest.fixture
def address():
    """A learner with a replay buffer that nobody breaks."""
    replay = serve_buffers({"0": make_buffer(n_rollouts=0)}, REPLAY_SPACES, n_rollout_steps=T)
    with serve(replay=replay) as learner:
        learner.source.publish(1, {"w": np.zeros(1, np.float32)})
        with LearnerClient(learner.address) as client:
            client.join(offer())
        yield learner.address


def answer_to(address, method, *requests):
    """The status code of a call, and the limit that its detail names; every shape looks the same from outside."""
    with make_channel(address) as channel:
        call = channel.stream_stream(method)(iter([request.SerializeToString() for request in requests]))
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code(), limit_in(call.trailing_metadata())
        return grpc.StatusCode.OK, ""


def limit_in(trailer):
    for key, value in trailer:
        if key == "grpc-status-details-bin":
            (detail,) = status_pb2.Status.FromString(value).details
            info = error_details_pb2.ErrorInfo()
            assert detail.Unpack(info)
            return info.metadata["limit"]
    return ""


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


def nested(depth):
    space = space_pb2.Space(discrete=space_pb2.Discrete(n=2))
    for _ in range(depth):
        space = space_pb2.Space(tuple=space_pb2.TupleSpace(members=[space]))
    return space


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
    "max_agents": (JOIN, [join_with(nested(0), n_agents=4097)], INVALID),
    "max_envs_per_actor": (JOIN, [join(n_envs=65537)], INVALID),
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
    declared |= {*Limits.__dataclass_fields__, "max_streams"}
    # what is forgotten is tried with the registry alone
    met = {*MET, "max_remembered_actors", *(name.removeprefix("test_") for name in globals())}
    assert declared - met == set()


def test_max_message_bytes(address):
    with LearnerClient(address) as client, pytest.raises(LimitExceededError, match="4194304") as refused:
        client.act({"": np.zeros((400_000, 4), np.float32)})
    assert refused.value.limit == "max_message_bytes"


def policy_of(**changes):
    chunk = policy_pb2.PolicyChunk(**({"version": 1, "count": 1, "total_bytes": 8, "payload": b"x" * 8} | changes))
    message = policy_pb2.GetPolicyResponse(chunk=chunk).SerializeToString()
    return EncodedPolicy(version=1, chunks=(message,), digest=b"", n_bytes=8)


def refusal_of_a_policy(**changes):
    """What a client says to a learner that casts it."""
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.source.encoded = policy_of(**changes)
        with pytest.raises(LimitExceededError) as refused:
            client.get_policy()
        return refused.value.limit


def test_max_policy_bytes():
    assert refusal_of_a_policy(total_bytes=(1 << 30) + 1) == "max_policy_bytes"


def test_max_chunk_bytes():
    n_bytes = (1 << 20) + 1
    assert refusal_of_a_policy(total_bytes=n_bytes, payload=bytes(n_bytes)) == "max_chunk_bytes"


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


@contextlib.contextmanager
def serve_intake(limits):
    """A learner whose joins and rollouts are a real learner's."""
    registry = ActorRegistry(max_actors=limits.max_actors, seed=0, join_lease_s=limits.join_lease_s)
    intake = RolloutIntake(
        registry, RolloutQueue(100), spaces=SPACES, policy=PolicySpec(), n_rollout_steps=5, envs_per_actor=2
    )
    server = make_server("127.0.0.1:0", sink=intake, source=FakeSource(), control=FakeControl(), limits=limits)
    server.start()
    try:
        with LearnerClient(server.address) as client:
            yield client, registry
    finally:
        server.stop(0.0)


def test_max_actors():
    with serve_intake(Limits(max_actors=1)) as (client, _):
        client.join(offer("a"))
        with pytest.raises(LimitExceededError) as refused:
            client.join(offer("b", process_nonce=8))
    assert refused.value.limit == "max_actors"


def test_join_lease_s():
    """Who joins and opens no stream leaves its slot to the next; then it is like anybody else."""
    with serve_intake(Limits(max_actors=1, join_lease_s=1e-3)) as (client, registry):
        for number in range(20):
            wait_until(lambda: joins(client, offer(f"a-{number}", process_nonce=number)))  # noqa: B023 - used at once
        assert [(info.actor_id, info.slot) for info in registry.infos()] == [("a-19", 0)]
        with pytest.raises(RollcastError, match="has not joined"):
            list(client.open_rollout_stream("a-0", 1).responses())


def joins(client, who):
    try:
        return client.join(who)
    except LimitExceededError:
        return None


def wait_until(condition):
    waiting = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if found := condition():
            return found
        waiting.wait(0.01)
    return pytest.fail("it did not happen")


def throttled(client):
    return {(met.who, met.limit) for met in client.status().throttled}


def test_max_streams():
    with serve(limits=Limits(max_actors=1)) as learner, LearnerClient(learner.address) as client:
        watches = [client.watch_status(3600) for _ in range(10)]
        for watch in watches:
            next(watch)
        with pytest.raises(ThrottledError, match="10 streams are open") as refused:
            next(client.watch_status())
        assert refused.value.limit == "max_streams"
        assert throttled(client) == {("ipv4:127.0.0.1", "max_streams")}
        watches.pop().close()
        wait_until(lambda: streams_again(client))
        for watch in watches:
            watch.close()


def test_streams_of_health_and_reflection_count_too():
    """gRPC's own health service would take any number of watchers, without a thread."""
    with serve(limits=Limits(max_actors=1)) as learner, LearnerClient(learner.address) as client:
        with contextlib.ExitStack() as stack:
            calls = []
            for method in ("/grpc.health.v1.Health/Watch", REFLECTION):
                for _ in range(6):
                    channel = stack.enter_context(make_channel(learner.address))
                    calls.append(channel.stream_stream(method)(endless(b"")))
            codes = [refusal_of(call) for call in calls]
            assert codes.count(None) == 10
            assert codes.count(EXHAUSTED) == 2
            assert client.status().env_steps == 12
            assert client.is_serving()


def endless(request):
    """One request, and then nothing until the call is over."""
    over = threading.Event()
    yield request
    over.wait(DEADLINE_S)


def refusal_of(call):
    """The status code of a stream that was refused; None: it has answered."""
    try:
        next(call)
    except grpc.RpcError as error:
        return error.code()
    return None


def streams_again(client):
    watch = client.watch_status(3600)
    try:
        next(watch)
    except ThrottledError:
        return False
    finally:
        watch.close()
    return True


def test_max_streams_per_connection():
    with serve(limits=Limits(max_streams_per_connection=3)) as learner:
        with LearnerClient(learner.address, timeout_s=0.5) as client, LearnerClient(learner.address) as other:
            watches = [client.watch_status(3600) for _ in range(3)]
            for watch in watches:
                next(watch)
            with pytest.raises(LearnerUnreachableError, match="in time"):
                client.status()
            assert other.status().env_steps == 12
            watches.pop().close()
            wait_until(lambda: answers(client))
            for watch in watches:
                watch.close()


def answers(client):
    try:
        return client.status()
    except (LearnerUnreachableError, ThrottledError):
        return None


def test_max_connections():
    with serve(limits=Limits(max_connections=4)) as learner, LearnerClient(learner.address) as client:
        client.status()
        host, port = learner.address.split(":")
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S)) for _ in range(20)]
            refused = [is_closed(connection) for connection in idle].count(True)
            assert refused >= 16
            assert client.status().env_steps == 12
        with LearnerClient(learner.address) as another:
            assert wait_until(lambda: answers(another)).env_steps == 12


def is_closed(connection):
    """Whether the server has closed it; else it has begun to speak HTTP/2."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_max_rollout_bytes():
    """Refused by its header: the bytes need not even come."""
    with serve(limits=Limits(max_rollout_bytes=100)) as learner, LearnerClient(learner.address) as client:
        client.join(offer())
        assert answer_to(learner.address, STREAM, OPENING, rollout()) == (EXHAUSTED, "max_rollout_bytes")


def halves(sequence=1, actor_id="a"):
    """A rollout that comes in two messages."""
    (message,) = RolloutEncoder().encode(make_rollout(sequence, actor_id=actor_id))
    whole = rollout_pb2.StreamRolloutsRequest.FromString(message)
    whole.ClearField("digest")
    body, half = whole.body, len(whole.body) // 2
    whole.body = body[:half]
    frame = rollout_pb2.StreamRolloutsRequest(
        frame=rollout_pb2.TensorFrame(sequence=sequence, offset=half), body=body[half:]
    )
    return whole, frame


def test_max_bytes_in_flight():
    """There is room for one; who leaves it half there is ended, and who waits for it is named, and served."""
    with contextlib.ExitStack() as stack:
        n_bytes = sum(len(message.body) for message in halves())
        tight = Limits(max_rollout_bytes=n_bytes, max_bytes_in_flight=n_bytes + 1, stalled_stream_s=2.0)
        learner = stack.enter_context(serve(limits=tight))
        client = stack.enter_context(LearnerClient(learner.address))
        channel = stack.enter_context(make_channel(learner.address))
        over = threading.Event()
        stack.callback(over.set)
        client.join(offer("a"))
        client.join(offer("b"))

        def half():
            yield OPENING.SerializeToString()
            yield halves()[0].SerializeToString()
            over.wait(DEADLINE_S)

        stalled = channel.stream_stream(STREAM)(half())
        next(stalled)
        wait_until(lambda: learner.sink.streams)
        uplink = client.open_rollout_stream("b", 1)
        responses = uplink.responses()
        next(responses)
        uplink.send(make_rollout(1, actor_id="b"))
        assert next(responses).acknowledged_sequence == 1
        uplink.cancel()
        with pytest.raises(grpc.RpcError):
            next(stalled)
        who = {limit: who for who, limit in throttled(client)}
        assert who["stalled_stream_s"].startswith("actor 'a' at ipv4:127.0.0.1:")
        assert who["max_bytes_in_flight"].startswith("actor 'b' at ipv4:127.0.0.1:")


def refuses(client):
    try:
        client.status()
    except ThrottledError as error:
        return error.limit
    return None


@pytest.mark.parametrize("limit", ["calls_per_second", "calls_per_second_per_host"])
def test_what_is_called_too_often(limit):
    # none comes back while the test runs: how fast the machine is does not matter
    with serve(limits=Limits(**{limit: 1e-3})) as learner, LearnerClient(learner.address) as client:
        client.status()
        assert refuses(client) == limit
        with make_channel(learner.address) as channel, pytest.raises(grpc.RpcError) as refused:
            next(channel.stream_stream(WATCH)(iter([b""])))
        assert (refused.value.code(), limit_in(refused.value.trailing_metadata())) == (EXHAUSTED, limit)
        assert client.is_serving()  # what watches over the learner is not put off


test_calls_per_second = test_calls_per_second_per_host = None  # both are the test above


def test_an_actor_that_is_told_so_backs_off():
    """Its first calls are refused; it asks again until they are not."""
    with serve(limits=Limits(calls_per_second_per_host=4.0)) as learner, LearnerClient(learner.address) as client:
        wait_until(lambda: refuses(client))
        with LearnerConnection(learner.address, offer(), connect_timeout_s=DEADLINE_S) as connection:
            assert connection.join().actor_id == "a"
            learner.sink.wait_for(lambda: learner.sink.streams)


def test_stalled_stream_s():
    """Whoever calls and says nothing is let go, whatever it has called."""
    with serve(limits=Limits(max_actors=1, stalled_stream_s=0.5)) as learner:
        with make_channel(learner.address) as channel, LearnerClient(learner.address) as client:
            over = threading.Event()

            def silence():
                over.wait(DEADLINE_S)
                yield from ()

            methods = [STATUS, STREAM, WATCH, JOIN, ACT, "/rollcast.v1.PolicyService/SubscribePolicy"]
            calls = [channel.stream_stream(method)(silence()) for method in methods * 3]  # as many as there are threads
            for call in calls:
                with pytest.raises(grpc.RpcError) as ended:
                    next(call)
                assert ended.value.code() in (grpc.StatusCode.CANCELLED, EXHAUSTED)
            over.set()
            wait_until(lambda: answers(client))
            assert ("ipv4:127.0.0.1", "stalled_stream_s") in throttled(client)
