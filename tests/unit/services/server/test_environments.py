import contextlib
import queue

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from gymnasium import spaces

from rollcast.services.client.channel import make_channel
from rollcast.services.environments.dialled import EnvironmentActions, Farewell
from rollcast.services.errors import (
    ConfigurationError,
    DamagedMessageError,
    InvalidTurnError,
    MissingMessageError,
    NameTakenError,
    PermissionDeniedError,
    ThrottledError,
    UnauthenticatedError,
    UnreadableMessageError,
)
from rollcast.services.limits.limits import Limits
from rollcast.services.security.security import ServerSecurity
from rollcast.services.security.tokens import Role, TokenTable
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.services.wire.error_status import error_from_rpc
from rollcast.services.wire.seal import seal
from rollcast.tools.certificates import make_certificates
from rollcast.v1 import environment_pb2, environment_pb2_grpc
from tests.bad_line import damaged
from tests.certificates import security_of, server_security_of
from tests.play_messages import FLAT, hello, turn, turns
from tests.processes import DEADLINE_S


class Sink:
    """Welcomes everybody, answers every request with action 1, and notes who leaves, and why."""

    def __init__(self):
        self.clients = []
        self.left = queue.Queue()
        self.taken = queue.Queue()
        self.refusal = None
        self.answers = True

    def attach(self, look_later): ...

    def look(self): ...

    def open(self, told, client):
        if self.refusal is not None:
            raise self.refusal
        self.clients.append(client)
        client.welcome(range(7, 7 + told.n_envs))

    def take(self, client, turns):
        actions = [EnvironmentActions(told.environment, [np.int64(1)] * told.n_running) for told in turns]
        if self.answers:
            client.answer([acted for acted in actions if len(acted.actions)], policy_version=3, progress=0.5)
        self.taken.put(turns)

    def leave(self, client, reason):
        self.left.put((client.name, reason))


class Game:
    """A client that says what a test wants, and reads what comes."""

    def __init__(self, channel, *, token=None):
        self._requests = queue.Queue()
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        self.call = stub.Play(iter(self._requests.get, None), metadata=metadata)

    def say(self, request):
        self._requests.put(request)
        return self

    def hear(self):
        return next(self.call)

    def error(self):
        with pytest.raises(grpc.RpcError) as ended:
            self.hear()
        return error_from_rpc(ended.value, "here")

    def close(self):
        self._requests.put(None)


@contextlib.contextmanager
def served(sink, **options):
    with EnvironmentServer("127.0.0.1:0", sink, **options) as server, grpc.insecure_channel(server.address) as channel:
        yield server, channel


@contextlib.contextmanager
def playing(**offered):
    """Yields a sink, and a client that it has welcomed."""
    sink = Sink()
    with served(sink) as (_, channel):
        game = Game(channel).say(hello(**offered))
        game.hear()
        yield sink, game


def test_a_client_is_welcome_and_gets_an_action_for_each_turn():
    sink = Sink()
    with served(sink) as (server, channel):
        game = Game(channel).say(hello(n_envs=2))
        welcome = game.hear().welcome
        assert (welcome.client, list(welcome.seeds), welcome.max_message_bytes) == ("game", [7, 8], 4 << 20)
        for _ in range(3):
            actions = game.say(turns(turn(environment=1))).hear().actions
            (of_environment,) = actions.environments
            assert (of_environment.environment, of_environment.agents[0].action) == (1, np.int64(1).tobytes())
            assert (actions.policy_version, actions.progress) == (3, 0.5)
        game.close()
        assert sink.left.get(timeout=DEADLINE_S) == ("game", "it closed its side")
        assert game.call.code() is grpc.StatusCode.OK
        assert server.latencies.n_noted == 3


def test_clients_without_a_name_get_one_each():
    with served(Sink()) as (_, channel):
        names = {Game(channel).say(hello("")).hear().welcome.client for _ in range(3)}
    assert len(names) == 3


def test_a_turn_that_breaks_a_rule_ends_its_stream_alone():
    sink = Sink()
    with served(sink) as (_, channel):
        good, bad = Game(channel).say(hello("good")), Game(channel).say(hello("bad"))
        good.hear(), bad.hear()
        error = bad.say(turns(turn(environment=5))).error()
        assert isinstance(error, InvalidTurnError)
        assert "client 'bad', environment 5" in str(error)
        assert sink.left.get(timeout=DEADLINE_S) == ("bad", str(error))
        good.say(turns(turn())).hear()


def test_turns_before_the_welcome_are_refused():
    sink = Sink()
    sink.open = lambda told, client: None
    with served(sink) as (_, channel):
        error = Game(channel).say(hello()).say(turns(turn())).error()
    assert isinstance(error, MissingMessageError)
    assert "before the server's welcome" in str(error)


def test_bytes_that_are_no_message_are_refused():
    with served(Sink()) as (_, channel):
        call = channel.stream_stream("/rollcast.v1.EnvironmentService/Play")(iter([b"\xff\xff"]))
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
    assert isinstance(error_from_rpc(ended.value, "here"), UnreadableMessageError)


def test_the_sink_refuses_a_client():
    sink = Sink()
    sink.refusal = NameTakenError("there is one of this name")
    with served(sink) as (_, channel):
        game = Game(channel).say(hello())
        assert isinstance(game.error(), NameTakenError)
        assert game.call.code() is grpc.StatusCode.ALREADY_EXISTS
    assert sink.left.empty()


def test_a_client_that_breaks_off_is_gone_at_once():
    with playing() as (sink, game):
        game.call.cancel()
        client, reason = sink.left.get(timeout=DEADLINE_S)
        # gRPC may end the requests before it cancels the call
        assert (client, reason in ("its connection was lost", "it closed its side")) == ("game", True)


def test_a_farewell_is_the_last_answer():
    with playing() as (sink, game):
        sink.clients[0].end(Farewell(reason="all learnt", training_ended=True))
        farewell = game.hear().farewell
        assert (farewell.reason, farewell.training_ended) == ("all learnt", True)
        assert list(game.call) == []
        assert game.call.code() is grpc.StatusCode.OK


def test_the_sink_ends_a_client_with_an_error():
    with playing() as (sink, game):
        sink.clients[0].end(ThrottledError("no place for you"))
        assert "no place for you" in str(game.error())


def test_actions_of_several_environments_travel_together():
    with playing(n_envs=2) as (sink, game):
        sink.answers = False
        game.say(turns(turn(environment=0), turn(environment=1)))
        sink.taken.get(timeout=DEADLINE_S)
        # Two threads could answer so; all that is there when the loop writes is one message.
        sink.clients[0].answer([EnvironmentActions(0, [np.int64(2)])], policy_version=4, progress=0.0)
        sink.clients[0].answer([EnvironmentActions(1, [np.int64(0)])], policy_version=4, progress=0.0)
        acted = []
        while len(acted) < 2:
            acted += [told.environment for told in game.hear().actions.environments]
    assert acted == [0, 1]


def test_actions_that_are_too_large_for_one_message_are_divided():
    offered = {"0": SubstepSpaces(observation=FLAT["0"].observation, action=spaces.Box(-1.0, 1.0, (300_000,)))}
    with playing(n_envs=8, offered=offered) as (sink, game):
        sink.answers = False
        game.say(turns(*(turn(environment=number) for number in range(8))))
        sink.taken.get(timeout=DEADLINE_S)
        action = np.zeros(300_000, np.float32)
        sink.clients[0].answer([EnvironmentActions(n, [action]) for n in range(8)], policy_version=4, progress=0.0)
        acted = []
        while len(acted) < 8:
            # gRPC refuses to send, and to read, more than 4 MiB
            acted += [told.environment for told in game.hear().actions.environments]
    assert acted == list(range(8))


class SealedGame(Game):
    """A client that says and reads bytes."""

    def __init__(self, channel):
        self._requests = queue.Queue()
        self.call = channel.stream_stream("/rollcast.v1.EnvironmentService/Play")(iter(self._requests.get, None))

    def hear(self):
        return environment_pb2.PlayResponse.FromString(next(self.call))


class TestDigests:
    HELLO, TURNS = (message.SerializeToString() for message in (hello(n_envs=2), turns(turn())))

    def test_a_client_that_sends_digests_gets_them(self):
        sink = Sink()
        with served(sink) as (_, channel):
            game = SealedGame(channel).say(seal(self.HELLO))
            for kind in ("welcome", "actions", "farewell"):
                answer = next(game.call)
                told = environment_pb2.PlayResponse.FromString(answer)
                assert told.WhichOneof("kind") == kind
                told.ClearField("digest")
                assert answer == seal(told.SerializeToString())
                if kind == "welcome":
                    game.say(seal(self.TURNS))
                else:
                    sink.clients[0].end(Farewell(reason="all learnt", training_ended=True))

    def test_a_client_without_them_gets_none_and_is_not_checked(self):
        with served(Sink()) as (_, channel):
            game = SealedGame(channel).say(self.HELLO)
            assert not game.hear().digest
            for message in (self.TURNS, damaged(seal(self.TURNS)), seal(self.TURNS)):
                assert not game.say(message).hear().digest

    @pytest.mark.parametrize(
        ("message", "said"),
        [
            (damaged(seal(TURNS)), f"the digest of its {len(TURNS) + 9} bytes does not match"),
            (damaged(seal(TURNS), at=1), f"the digest of its {len(TURNS) + 9} bytes does not match"),
            (TURNS, "it has no digest, and the first of its stream had one"),
            (b"", "it has no digest, and the first of its stream had one"),
        ],
        ids=["a number", "a length", "no digest", "nothing"],
    )
    def test_a_damaged_message_ends_its_stream_alone(self, caplog, message, said):
        sink = Sink()
        with served(sink) as (_, channel):
            other, game = (SealedGame(channel).say(seal(hello(name).SerializeToString())) for name in ("other", "game"))
            other.hear(), game.hear()
            error = game.say(message).error()
            assert type(error) is DamagedMessageError
            assert said in str(error)
            assert game.call.code() is grpc.StatusCode.UNAVAILABLE
            assert sink.left.get(timeout=DEADLINE_S) == ("game", str(error))
            other.say(seal(self.TURNS)).hear()
            assert SealedGame(channel).say(seal(self.HELLO)).hear().HasField("welcome"), "it dials in again"
        assert f"client 'game' must dial in again: {error}" in caplog.text

    def test_a_damaged_hello_is_refused(self):
        with served(Sink()) as (_, channel):
            error = SealedGame(channel).say(damaged(seal(self.HELLO))).error()
        assert type(error) is DamagedMessageError

    def test_a_message_with_a_digest_is_not_too_large(self):
        size = 524_283  # two actions of this size would fit into the largest message, without a digest
        offered = {"0": SubstepSpaces(observation=FLAT["0"].observation, action=spaces.Box(-1.0, 1.0, (size,)))}
        sink = Sink()
        sink.answers = False
        with served(sink) as (_, channel):
            game = SealedGame(channel).say(seal(hello(n_envs=2, offered=offered).SerializeToString()))
            game.hear()
            game.say(seal(turns(*(turn(environment=number) for number in range(2))).SerializeToString()))
            sink.taken.get(timeout=DEADLINE_S)
            actions = [EnvironmentActions(number, [np.zeros(size, np.float32)]) for number in range(2)]
            sink.clients[0].answer(actions, policy_version=4, progress=0.0)
            answers = [next(game.call), next(game.call)]
        assert sum(map(len, answers)) > 4 << 20


class TestLimits:
    def test_a_call_without_hello_ends(self):
        with served(Sink(), limits=Limits(stalled_stream_s=0.2)) as (_, channel):
            game = Game(channel)
            with pytest.raises(grpc.RpcError) as ended:
                game.hear()
            assert ended.value.code() is grpc.StatusCode.CANCELLED
            assert "did not send" in ended.value.details()

    def test_the_number_of_streams_is_bounded(self):
        limits = Limits(max_actors=1)
        with served(Sink(), limits=limits) as (_, channel):
            games = [Game(channel).say(hello("")) for _ in range(limits.max_streams)]
            assert all(game.hear().HasField("welcome") for game in games)
            error = Game(channel).say(hello("")).error()
        assert isinstance(error, ThrottledError)
        assert error.limit == "max_streams"
        assert "--" not in str(error), "no option raises it"

    def test_an_address_may_open_so_many_streams_a_second(self):
        with served(Sink(), limits=Limits(calls_per_second_per_host=0.1)) as (_, channel):
            first = Game(channel).say(hello("first"))
            assert first.hear().HasField("welcome")
            error = Game(channel).say(hello("second")).error()
            assert error.limit == "calls_per_second_per_host"
            assert "--" not in str(error), "no option raises it"


class TestSecurity:
    TOKENS = TokenTable({"a" * 16: Role.ACTOR, "v" * 16: Role.VIEWER})

    @pytest.mark.parametrize(
        ("token", "error"),
        [(None, UnauthenticatedError), ("x" * 16, UnauthenticatedError), ("v" * 16, PermissionDeniedError)],
    )
    def test_a_call_needs_an_actors_token(self, token, error):
        with served(Sink(), security=ServerSecurity(tokens=self.TOKENS)) as (_, channel):
            assert isinstance(Game(channel, token=token).say(hello()).error(), error)
            assert Game(channel, token="a" * 16).say(hello()).hear().HasField("welcome")

    def test_serves_with_mutual_tls_and_tokens(self, tmp_path):
        make_certificates(tmp_path)
        with (
            EnvironmentServer("localhost:0", Sink(), security=server_security_of(tmp_path)) as server,
            make_channel(server.address, security_of(tmp_path, "actor")) as channel,
        ):
            assert Game(channel).say(hello()).hear().HasField("welcome")


def test_a_client_may_be_blocked_for_a_minute(monkeypatch):
    made, make = [], grpc.aio.server

    def note(**options):
        made.append(dict(options["options"]))
        return make(**options)

    monkeypatch.setattr(grpc.aio, "server", note)
    with served(Sink()) as (_, channel):
        assert Game(channel).say(hello()).hear().HasField("welcome")
    (options,) = made
    assert options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"] == 60_000


class TestServer:
    def test_reports_its_health(self):
        with served(Sink()) as (_, channel):
            stub = health_pb2_grpc.HealthStub(channel)
            for name in ("", "rollcast.v1.EnvironmentService"):
                answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=DEADLINE_S)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

    def test_stops_with_open_streams(self):
        sink = Sink()
        with served(sink) as (server, channel):
            game = Game(channel).say(hello())
            game.hear()
            server.stop(grace_s=0.1)
            assert sink.left.get(timeout=DEADLINE_S)[0] == "game"
            with pytest.raises(grpc.RpcError):
                game.hear()

    @pytest.mark.parametrize(
        ("addresses", "said"),
        [
            ({"address": "0.0.0.0:0"}, "can be reached from other machines .* has no TLS"),
            ({"websocket_address": "0.0.0.0:0"}, "has no TLS"),
            ({"websocket_address": "unix:/a"}, "expected host:port"),
        ],
        ids=str,
    )
    def test_refuses_an_address_that_is_open_or_no_page_can_dial(self, addresses, said):
        with pytest.raises(ConfigurationError, match=said):
            EnvironmentServer(**{"address": "127.0.0.1:0", **addresses}, sink=Sink())

    def test_says_that_an_address_is_taken(self):
        with served(Sink()) as (server, _), pytest.raises(Exception, match="in use"):
            EnvironmentServer(server.address, Sink()).start()

    def test_serves_a_unix_socket(self, tmp_path):
        with (
            EnvironmentServer(f"unix:{tmp_path}/play", Sink()) as server,
            grpc.insecure_channel(server.address, (("grpc.default_authority", "localhost"),)) as channel,
        ):
            assert Game(channel).say(hello()).hear().HasField("welcome")
        assert not (tmp_path / "play").exists()
