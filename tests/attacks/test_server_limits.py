"""Every limit that an operator may set, met over a real connection: a detail names it, and others are served on."""

import contextlib
import gc
import socket
import threading

import grpc
import pytest

from rollcast.actor.connection.learner import LearnerConnection
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, LimitExceededError, RollcastError, ThrottledError
from rollcast.services.limits.limits import Limits
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.v1 import rollout_pb2
from tests.attacks.hostile_clients import half_open_calls
from tests.attacks.limited_calls import (
    ACT,
    EXHAUSTED,
    JOIN,
    OPENING,
    STATUS,
    STREAM,
    WATCH,
    answer_to,
    limit_in,
    throttled,
)
from tests.attacks.served_intake import serve_intake
from tests.integration.learner_fakes import offer, serve
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import make_rollout

HEALTH_CHECK, HEALTH_WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SUBSCRIBE = "/rollcast.v1.PolicyService/SubscribePolicy"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def test_max_actors():
    with serve_intake(Limits(max_actors=1)) as (client, _):
        client.join(offer("a"))
        with pytest.raises(LimitExceededError) as refused:
            client.join(offer("b", process_nonce=8))
    assert refused.value.limit == "max_actors"


def test_join_lease_s():
    """An actor that joins and opens no stream loses its slot to the next one."""
    with serve_intake(Limits(max_actors=1, join_lease_s=1e-3)) as (client, registry):
        for number in range(20):
            who = offer(f"a-{number}", process_nonce=number)
            wait_until(lambda: joins(client, who), "the one before it has lost its slot")  # noqa: B023 - used at once
        assert [(info.actor_id, info.slot) for info in registry.infos()] == [("a-19", 0)]
        with pytest.raises(RollcastError, match="has not joined"):
            list(client.open_rollout_stream("a-0", 1).responses())


def joins(client, who):
    try:
        return client.join(who)
    except LimitExceededError:
        return None


def test_max_streams():
    with serve(limits=Limits(max_actors=1)) as learner, LearnerClient(learner.address) as client:
        watches = [client.watch_status(3600) for _ in range(10)]
        for watch in watches:
            next(watch)
        with pytest.raises(ThrottledError, match="10 streams are open") as refused:
            next(client.watch_status())
        assert refused.value.limit == "max_streams"
        assert throttled(client) == {("127.0.0.1", "max_streams")}
        watches.pop().close()
        wait_until(lambda: streams_again(client), "the place of a stream that was closed")
        for watch in watches:
            watch.close()


def test_streams_of_health_and_reflection_count_too():
    """gRPC's own health service would take any number of watchers, without a thread."""
    with serve(limits=Limits(max_actors=1)) as learner, LearnerClient(learner.address) as client:
        with contextlib.ExitStack() as stack:
            calls = []
            for method in (HEALTH_WATCH, REFLECTION):
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
            wait_until(lambda: answers(client), "an answer on a connection with room again")
            for watch in watches:
                watch.close()


@pytest.fixture
def _uncollected():
    """Without the garbage collector: what is only freed by it is freed late, if there is much else in memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize("end", ["says goodbye", "is lost"])
def test_an_actor_that_has_gone_takes_no_place_on_its_connection(end):
    with serve_intake(Limits(max_streams_per_connection=3)) as (client, registry):
        for i in range(10):
            agreement = client.join(offer(f"a{i}"))
            uplink = client.open_rollout_stream(agreement.actor_id, agreement.incarnation)
            next(uplink.responses())
            uplink.close() if end == "says goodbye" else uplink.cancel()
            wait_until(lambda: registry.n_taken() == 0 and answers(client), "the actor's place is free")


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
            wait_until(lambda: answers(another), "a connection that is let in again")


def is_closed(connection):
    """Returns True if the server has closed the connection, False if it has begun to speak HTTP/2."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_max_rollout_bytes():
    """Refused by its header: the bytes need not even come."""
    with serve(limits=Limits(max_rollout_bytes=100)) as learner, LearnerClient(learner.address) as client:
        client.join(offer())
        assert answer_to(learner.address, STREAM, OPENING, halves()[0]) == (EXHAUSTED, "max_rollout_bytes")


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
        tight = Limits(max_rollout_bytes=n_bytes, max_bytes_in_flight=n_bytes + 1, stalled_stream_s=5.0)
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
        wait_until(lambda: learner.sink.streams and learner.sink.streams[0].n_received, "half a rollout")
        uplink = client.open_rollout_stream("b", 1)
        responses = uplink.responses()
        next(responses)
        uplink.send(make_rollout(1, actor_id="b"))
        assert next(responses).acknowledged_sequence == 1
        uplink.cancel()
        with pytest.raises(grpc.RpcError):
            next(stalled)
        who = {limit: who for who, limit in throttled(client)}
        assert who["stalled_stream_s"].startswith("actor 'a' at 127.0.0.1:")
        assert who["max_bytes_in_flight"].startswith("actor 'b' at 127.0.0.1:")


def refuses(client):
    try:
        client.status()
    except ThrottledError as error:
        return error.limit
    return None


RATES = ["calls_per_second", "calls_per_second_per_host"]


@pytest.mark.parametrize("limit", RATES)
def test_what_is_called_too_often(limit):
    # none comes back while the test runs: how fast the machine is does not matter
    with serve(limits=Limits(**{limit: 1e-3})) as learner, LearnerClient(learner.address) as client:
        client.status()
        assert refuses(client) == limit
        with make_channel(learner.address) as channel, pytest.raises(grpc.RpcError) as refused:
            next(channel.stream_stream(WATCH)(iter([b""])))
        assert (refused.value.code(), limit_in(refused.value.trailing_metadata())) == (EXHAUSTED, limit)
        assert client.is_serving()  # what watches over the learner is not put off


HALF_OPEN = {
    "max_half_open_calls": Limits(max_half_open_calls=8, request_s=60.0),
    "max_half_open_calls_per_host": Limits(max_half_open_calls_per_host=8, request_s=60.0),
    "request_s": Limits(request_s=1.0),
}


@pytest.mark.parametrize("limit", HALF_OPEN)
def test_what_sends_no_request_is_ended(limit, caplog):
    with serve(limits=HALF_OPEN[limit]) as learner, LearnerClient(learner.address) as client:
        with half_open_calls(learner.address, [HEALTH_CHECK], n_calls=16, n_connections=2):
            met = []
            wait_until(lambda: met.extend(met_while_serving(client)) or met, "some were ended, and others served")
            assert set(met) == {("127.0.0.1", limit)}
            # the status knows it a moment before
            told = f"calls that sent no request, the last of 127.0.0.1 ({limit})"
            wait_until(lambda: told in caplog.text, "the warning")


def met_while_serving(client):
    """The limits met; none if one of the questions was ended, too: its request has come later than others' calls."""
    try:
        return throttled(client) if client.is_serving() else set()
    except LearnerUnreachableError:
        return set()


def test_max_calls():
    """Calls that take long leave room for probes."""
    with contextlib.ExitStack() as stack:
        limits = Limits(max_actors=1)
        learner = stack.enter_context(serve(limits=limits))
        client = stack.enter_context(LearnerClient(learner.address))
        over, n_begun = threading.Event(), threading.Semaphore(0)
        learner.control.save_checkpoint = lambda: (n_begun.release(), over.wait(DEADLINE_S), ("/run/checkpoint", 3))[2]
        channel = stack.enter_context(make_channel(learner.address))
        stack.callback(over.set)
        save = channel.unary_unary("/rollcast.v1.LearnerService/SaveCheckpoint")
        calls = [save.future(b"") for _ in range(limits.max_calls)]
        for _ in calls:
            assert n_begun.acquire(timeout=DEADLINE_S)
        with pytest.raises(ThrottledError, match="9 calls are being answered") as refused:
            client.save_checkpoint()
        assert refused.value.limit == "max_calls"
        assert client.status().env_steps == 12
        assert client.is_serving()
        over.set()
        for call in calls:
            call.result()


def test_every_limit_is_met_here():
    met = {*RATES, *HALF_OPEN, *(name.removeprefix("test_") for name in globals())}
    assert {*Limits.__dataclass_fields__, "max_streams", "max_calls"} - met == set()


def test_an_actor_that_is_told_so_backs_off():
    """Its first calls are refused; it asks again until they are not."""
    with serve(limits=Limits(calls_per_second_per_host=4.0)) as learner, LearnerClient(learner.address) as client:
        wait_until(lambda: refuses(client), "a call too many")
        with LearnerConnection(learner.address, offer(), connect_timeout_s=DEADLINE_S) as connection:
            assert connection.join().actor_id == "a"
            learner.sink.wait_for(lambda: learner.sink.streams)


def test_stalled_stream_s():
    """The server ends every call without a request, of every method."""
    with serve(limits=Limits(max_actors=1, stalled_stream_s=0.5)) as learner:
        with make_channel(learner.address) as channel, LearnerClient(learner.address) as client:
            over = threading.Event()

            def silence():
                over.wait(DEADLINE_S)
                yield from ()

            methods = [HEALTH_CHECK, STATUS, STREAM, WATCH, JOIN, ACT, SUBSCRIBE]
            calls = [channel.stream_stream(method)(silence()) for method in methods * 3]  # there are 18 threads
            for call in calls:
                with pytest.raises(grpc.RpcError) as ended:
                    next(call)
                assert ended.value.code() in (grpc.StatusCode.CANCELLED, EXHAUSTED)
            over.set()
            wait_until(lambda: answers(client), "a free thread")
            assert ("127.0.0.1", "stalled_stream_s") in throttled(client)


def test_a_stream_counts_when_its_request_has_come():
    """Half-open streams take no place of one that is used."""
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve(limits=Limits(max_actors=1)))
        stack.enter_context(half_open_calls(learner.address, [SUBSCRIBE, WATCH, STREAM], n_calls=60))
        client = stack.enter_context(LearnerClient(learner.address))
        for _ in range(10):
            watch = client.watch_status(3600)
            assert next(watch).env_steps == 12
            stack.callback(watch.close)
