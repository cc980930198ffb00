"""The engine alone: what shares a forward pass, and what it refuses."""

import contextlib
import queue
import threading

import numpy as np
import pytest

from rollcast.actor.inference import engine as engine_module
from rollcast.actor.policies.make import make_policy
from rollcast.services.errors import NotReadyError, ProtocolMismatchError, ThrottledError
from rollcast.services.inference.codec import network_from_bytes, network_to_bytes
from rollcast.services.inference.inference import InferenceNetwork, Question, weights_digest
from rollcast.services.policies.policies import PolicySpec
from tests.processes import DEADLINE_S
from tests.unit.actor.inference.served import SPACES, Actor, Policies, engine_of, weights

SPEC = PolicySpec(hidden_sizes=(8,), recurrence="gru", recurrent_size=4)


def network(spec=SPEC):
    """As it comes over the wire: no two are one object."""
    return network_from_bytes(network_to_bytes(InferenceNetwork(SPACES, spec)))


def question(state, n=1, number=0.0):
    observation = {"": np.full((n, 4), number, np.float32)}
    return Question(1, weights_digest(state), "0", observation, np.zeros((n, 4), np.float32))


def test_questions_that_wait_share_a_forward_pass_even_of_actors_that_know_each_other_not():
    state, answers, is_at_it, goes_on = weights(SPEC), queue.Queue(), threading.Event(), threading.Event()

    def blocks(answer):
        is_at_it.set()
        assert goes_on.wait(DEADLINE_S)
        answers.put(answer)

    with engine_of(Policies(1, state)) as engine, contextlib.ExitStack() as stack:
        asks = [stack.enter_context(engine.stream(*network())) for _ in range(3)]
        asks[0](question(state), blocks)
        assert is_at_it.wait(DEADLINE_S)
        for number, ask in enumerate(asks, start=1):
            ask(question(state, n=number, number=number / 10), answers.put)
        goes_on.set()
        first, *others = (answers.get(timeout=DEADLINE_S) for _ in range(4))
        assert engine.n_batches == 2
    alone = Actor("unix:/nowhere", SPEC).load(1, state)
    with alone:
        for number, answer in enumerate(others, start=1):
            asked = question(state, n=number, number=number / 10)
            expected = alone.alone.parameters_of(asked.observation, "0", asked.state)
            np.testing.assert_allclose(answer.parameters, expected, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(answer.state, asked.state, rtol=1e-6, atol=1e-6)
    assert first.policy_version == 1


def test_an_opening_waits_for_the_first_policy():
    policies, answers = Policies(), queue.Queue()
    with engine_of(policies) as engine, engine.stream(*network()) as ask:
        ask(None, answers.put)
        assert answers.empty()
        policies.publish(1, weights(SPEC))
        assert answers.get(timeout=DEADLINE_S) is None


def test_an_error_ends_the_streams_of_its_network_alone():
    state, answers = weights(SPEC), queue.Queue()
    with engine_of(Policies(1, state)) as engine:
        with engine.stream(*network()) as good, engine.stream(*network(PolicySpec(network="a:b"))) as bad:
            bad(None, answers.put)
            assert isinstance(answers.get(timeout=DEADLINE_S), ProtocolMismatchError)
            good(question(state), answers.put)
            assert answers.get(timeout=DEADLINE_S).policy_version == 1


def test_a_network_that_does_not_fit_is_built_once_and_may_fit_the_next_run(monkeypatch):
    built, answers, other = [], queue.Queue(), PolicySpec(hidden_sizes=(4,))
    monkeypatch.setattr(engine_module, "make_policy", lambda *a, **k: built.append(a) or make_policy(*a, **k))
    policies = Policies(1, weights(SPEC))
    with engine_of(policies) as engine:

        def opened():
            with engine.stream(*network(other)) as ask:
                ask(None, answers.put)
                return answers.get(timeout=DEADLINE_S)

        first, second = opened(), opened()
        assert isinstance(second, ProtocolMismatchError)
        assert str(second) == str(first)
        assert len(built) == 1
        policies.publish(1, weights(other))
        assert opened() is None


def test_streams_of_a_network_share_it_and_too_many_networks_are_refused():
    specs = [PolicySpec(hidden_sizes=(n,)) for n in range(1, 6)]
    with engine_of(Policies()) as engine, contextlib.ExitStack() as stack:
        for spec in (*specs[:4], *specs[:4]):
            stack.enter_context(engine.stream(*network(spec)))
        with pytest.raises(ThrottledError, match="4 networks"), engine.stream(*network(specs[4])):
            pass
        stack.close()
        with engine.stream(*network(specs[4])):
            pass


def test_who_waits_when_it_stops_is_told():
    answers = queue.Queue()
    with engine_of(Policies()) as engine, engine.stream(*network()) as ask:
        ask(None, answers.put)
        engine.close()
        assert isinstance(answers.get(timeout=DEADLINE_S), NotReadyError)
        ask(None, answers.put)
        assert isinstance(answers.get(timeout=DEADLINE_S), NotReadyError)
