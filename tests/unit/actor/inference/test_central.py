"""An actor with central inference plays as it would alone, whatever becomes of the server."""

import contextlib
import itertools

import grpc
import numpy as np
import pytest

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.actor.connection.backoff import backoff_delays
from rollcast.actor.dialling.supply import DialIn, DialledSupply
from rollcast.services.client.channel import make_channel
from rollcast.services.errors import DamagedMessageError
from rollcast.services.inference.codec import QuestionCodec, network_to_bytes
from rollcast.services.inference.inference import InferenceNetwork, Inferred, Question, weights_digest
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.security.security import PLAIN_SERVER, ClientSecurity, ServerSecurity
from rollcast.services.security.tokens import Role, TokenTable
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from rollcast.services.wire.error_status import error_from_rpc
from rollcast.services.wire.seal import seal
from rollcast.v1 import inference_pb2
from tests.bad_line import BadLine, damaged, flips, without_digest
from tests.processes import wait_until
from tests.rollouts import assert_same_rollout
from tests.unit.actor.inference.served import (
    SPACES,
    Actor,
    Policies,
    address_in,
    engine_of,
    rollouts,
    serving,
    weights,
)
from tests.unit.actor.metric_figures import figures

METHOD = "/rollcast.v1.InferenceService/Infer"
SPEC = PolicySpec()
SPECS = {
    "mlp": SPEC,
    "gru": PolicySpec(hidden_sizes=(16,), recurrence="gru", recurrent_size=8),
    "frames": PolicySpec(hidden_sizes=(16,), recurrence="lstm", recurrent_size=8, frame_stack=3),
    "q": PolicySpec(head="q_values"),
}


class Deaf:
    """Takes every network, and answers nothing."""

    @contextlib.contextmanager
    def stream(self, network, digest):
        yield lambda question, take: take(None) if question is None else None


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert_same_rollout(one, other)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_plays_as_alone(tmp_path, spec):
    address, state = address_in(tmp_path), weights(spec)
    with engine_of(Policies(1, state)) as engine, serving(address, engine), Actor(address, spec) as actor:
        actor.load(1, state).ask_until_answered()
        n_alone, n_answers = actor.central.n_alone, actor.n_answers
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert (actor.central.n_alone - n_alone, actor.n_answers - n_answers) == (0, 60)
        assert actor.central.latencies.percentiles(99)[0] > 0.0


def test_goes_on_alone_when_the_server_dies_in_mid_rollout_and_asks_it_again_when_it_is_back(tmp_path, caplog):
    caplog.set_level("INFO")
    address, state, steps = address_in(tmp_path), weights(SPECS["gru"]), itertools.count()
    with contextlib.ExitStack() as server, engine_of(Policies(1, state)) as engine:
        server.enter_context(serving(address, engine))
        with Actor(address, SPECS["gru"]) as actor:
            actor.load(1, state).ask_until_answered()
            n_alone, n_answers = actor.central.n_alone, actor.n_answers

            def dies_in_the_tenth_step():
                if next(steps) == 10:
                    server.close()
                return False

            assert_same(rollouts(actor.policy, should_stop=dies_in_the_tenth_step), rollouts(actor.alone))
            assert (actor.n_answers - n_answers, actor.central.n_alone - n_alone) == (10, 50)
            with serving(address, engine):
                actor.ask_until_answered()
                said = [record.message.partition(address)[2] for record in caplog.records if address in record.message]
    assert [line.split()[0:2] for line in said if "answers" in line or "is away" in line] == [
        ["answers"],
        ["is", "away:"],
        ["answers"],
    ]


def test_does_not_wait_for_a_late_server(tmp_path, caplog):
    address, state = address_in(tmp_path), weights()
    with serving(address, Deaf()), Actor(address, SPEC, timeout_s=0.01) as actor:
        actor.load(1, state)
        wait_until(lambda: (actor.ask(), "no answer arrived within 0.01 s" in caplog.text)[1], "a late answer")
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert actor.n_answers == 0
    assert caplog.text.count("is away") == 1


def test_a_server_with_wrong_answers_is_asked_ever_less_often(tmp_path, monkeypatch):
    address, waits = address_in(tmp_path), []

    class Wrong:
        """Answers with another number of parameters."""

        @contextlib.contextmanager
        def stream(self, network, digest):
            yield lambda question, take: take(None if question is None else Inferred(1, np.zeros((1, 7), np.float32)))

    def noted_delays():
        waits.append([])
        for delay_s in backoff_delays():
            waits[-1].append(delay_s)
            yield 0.0

    monkeypatch.setattr("rollcast.actor.inference.link.backoff_delays", noted_delays)
    with serving(address, Wrong()), Actor(address, SPEC) as actor:
        actor.load(1, weights())
        wait_until(lambda: (actor.ask(), sum(map(len, waits)) >= 7)[1], "seven streams")
    assert len(waits) == 1
    assert waits[0][6] >= 2.5


def line_to(address, **changes):
    digests = (
        lambda request: inference_pb2.InferRequest.FromString(request).digest,
        lambda response: inference_pb2.InferResponse.FromString(response).digest,
    )
    return BadLine(METHOD, address, digests, **changes)


@pytest.mark.parametrize("is_old", [False, True])
def test_messages_have_digests_unless_the_server_is_older(tmp_path, is_old):
    behind, before, state = address_in(tmp_path), f"unix:{tmp_path / 'line'}", weights()
    line = line_to(behind, **({"request": without_digest} if is_old else {}))
    with (
        engine_of(Policies(1, state)) as engine,
        serving(behind, engine),
        line.at(before),
        Actor(before, SPEC) as actor,
    ):
        actor.load(1, state).ask_until_answered()
        n_alone = actor.central.n_alone
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert actor.central.n_alone == n_alone
    assert line.n_messages[0] >= 62
    assert line.n_digests == [line.n_messages[0], 0 if is_old else line.n_messages[1]]


def test_acts_itself_when_an_answer_was_damaged_and_asks_again_soon(tmp_path, caplog):
    behind, before, state = address_in(tmp_path), f"unix:{tmp_path / 'line'}", weights()
    line = line_to(behind, response=flips(20))
    with (
        engine_of(Policies(1, state)) as engine,
        serving(behind, engine),
        line.at(before),
        Actor(before, SPEC) as actor,
    ):
        actor.load(1, state).ask_until_answered()
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert "is away: a message was damaged in transit: the digest of its" in caplog.text
        actor.ask_until_answered()


def test_a_damaged_question_is_refused_and_the_network_is_known_without_its_digest(tmp_path):
    address, state, given = address_in(tmp_path), weights(), []

    class Noting:
        """Notes the digests of networks."""

        def __init__(self, engine):
            self._engine = engine

        def stream(self, network, digest):
            given.append(digest)
            return self._engine.stream(network, digest)

    network = InferenceNetwork(SPACES, SPEC)
    question = Question(1, weights_digest(state), FLAT_SUBSTEP, {"": np.zeros((1, 4), np.float32)}, None)
    asked = QuestionCodec(network).to_bytes(question)
    with engine_of(Policies(1, state)) as engine, serving(address, Noting(engine)), make_channel(address) as channel:
        infer = channel.stream_stream(METHOD)
        opened, *answers = infer(iter([seal(network_to_bytes(network)), seal(asked)]))
        assert opened == seal(b"")
        assert [inference_pb2.InferResponse.FromString(answer).policy_version for answer in answers] == [1]
        opened, *answers = infer(iter([network_to_bytes(network), asked]))
        assert opened == b""
        assert [inference_pb2.InferResponse.FromString(answer).digest for answer in answers] == [0]
        call = infer(iter([seal(network_to_bytes(network)), damaged(seal(asked))]))
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
    assert type(error_from_rpc(ended.value, "here")) is DamagedMessageError
    assert len(set(given)) == 1


def test_acts_itself_with_a_newer_policy_than_the_server_has(tmp_path):
    address, old, new = address_in(tmp_path), weights(), weights()
    policies = Policies(1, old)
    with engine_of(policies) as engine, serving(address, engine), Actor(address, SPEC) as actor:
        actor.load(1, old).ask_until_answered()
        n_answers = actor.n_answers
        actor.load(2, new)
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert actor.n_answers == n_answers
        policies.publish(2, new)
        actor.ask_until_answered()


def test_takes_a_newer_policy_of_the_same_run(tmp_path):
    address, old, new = address_in(tmp_path), weights(), weights()
    policies = Policies(1, old)
    with engine_of(policies) as engine, serving(address, engine), Actor(address, SPEC) as actor:
        policies.publish(2, new)
        found = actor.load(1, old).ask_until_answered()
        assert (found == Actor.ask(actor.load(2, new))).all()


@pytest.mark.parametrize("version", [1, 9])
def test_a_server_of_another_run_is_not_used(tmp_path, version, caplog):
    address = address_in(tmp_path)
    with engine_of(Policies(version, weights())) as engine, serving(address, engine), Actor(address, SPEC) as actor:
        actor.load(1, weights())
        if version == 1:
            wait_until(lambda: (actor.ask(), "differs from this version at central" in caplog.text)[1], "a refusal")
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert actor.n_answers == 0


def test_a_server_of_another_network_is_not_used(tmp_path, caplog):
    address, other = address_in(tmp_path), PolicySpec(hidden_sizes=(8,))
    with engine_of(Policies(1, weights(other))) as engine, serving(address, engine), Actor(address, SPEC) as actor:
        actor.load(1, weights())
        wait_until(lambda: "is away" in caplog.text, "a refusal")
        assert_same(rollouts(actor.policy), rollouts(actor.alone))
        assert "networks.0.layers" in caplog.text
        assert actor.n_answers == 0


def test_a_server_wants_a_token(caplog):
    state = weights()
    security = ServerSecurity(tokens=TokenTable({16 * "a": Role.ACTOR, 16 * "v": Role.VIEWER}))
    with engine_of(Policies(1, state)) as engine, serving("127.0.0.1:0", engine, security=security) as server:
        for token, said in ((None, "has no token"), (16 * "v", "role is viewer")):
            with Actor(server.address, SPEC, security=ClientSecurity(token=token)) as actor:
                wait_until(lambda said=said: said in caplog.text, "a refusal")
        with Actor(server.address, SPEC, security=ClientSecurity(token=16 * "a")) as actor:
            actor.load(1, state).ask_until_answered()


def test_metrics_have_the_time_of_an_answer_on_both_sides(tmp_path):
    address, state, asking, answering = address_in(tmp_path), weights(), ActorMetrics(), ActorMetrics()
    with engine_of(Policies(1, state)) as engine, Actor(address, SPEC) as actor:
        actor.load(1, state).ask()
        with DialledSupply(DialIn(address, PLAIN_SERVER), 1, stall_s=60.0, inference=engine) as supply:
            actor.ask_until_answered()
            asking.asks(actor.central)
            answering.serves(supply, engine)
            told = asking.activity()
            asked, answered = (
                figures(metrics, f"rollcast_actor_{of}_")
                for metrics, of in ((asking, "inference"), (answering, "served_inference"))
            )
    assert asked["alone_total", None] >= 1
    assert asked["answers_total", None] == answered["answers_total", None] == answered["batches_total", None] == 1
    assert (told.answer_p50_s, told.answer_p99_s) == tuple(asked["answer_seconds", q] for q in ("0.5", "0.99"))
    for quantile in ("0.5", "0.99"):
        assert asked["answer_seconds", quantile] >= answered["answer_seconds", quantile] > 0.0
