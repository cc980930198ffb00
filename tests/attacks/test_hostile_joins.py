"""Joins with numbers from which no learner could count on."""

import contextlib

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.counts import MAX_COUNT
from tests.integration.learner_fakes import offer
from tests.relays import relaying, serve_learner, streaming
from tests.rollouts import make_rollout


@pytest.mark.parametrize("n_relays", [0, 1])
@pytest.mark.parametrize("number", [MAX_COUNT + 1, 2**64 - 1])
def test_a_join_that_counts_too_far_is_refused_and_harms_nobody(number: int, n_relays: int):
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve_learner())
        address = learner.address
        for _ in range(n_relays):
            address = stack.enter_context(relaying(address)).address
        good = stack.enter_context(streaming(address, "good"))
        answers = good.responses()
        next(answers)
        for field, what in (("incarnation", "incarnation"), ("acknowledged_sequence", "rollout")):
            hostile = offer("victim", process_nonce=5, **{field: number})
            with (
                LearnerClient(address) as client,
                pytest.raises(InvalidInputError, match=f"actor 'victim' continues from {what} {number}; expected at"),
            ):
                client.join(hostile)
        stack.enter_context(streaming(address, "victim"))
        assert learner.info("victim").incarnation == 1
        good.send(make_rollout(1, actor_id="good"))
        assert any(progress.acknowledged_sequence == 1 for progress in answers)


@pytest.mark.parametrize("n_relays", [0, 1])
def test_whoever_counts_as_far_as_possible_takes_a_name_from_nobody(n_relays: int):
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serve_learner()).address
        for _ in range(n_relays):
            address = stack.enter_context(relaying(address)).address
        client = stack.enter_context(LearnerClient(address))
        largest = {"incarnation": MAX_COUNT, "acknowledged_sequence": MAX_COUNT}
        assert client.join(offer("victim", process_nonce=5, **largest)).incarnation == MAX_COUNT
        stream = client.open_rollout_stream("victim", MAX_COUNT)
        stack.callback(stream.cancel)
        assert next(stream.responses()).credit_sequence > MAX_COUNT
        agreement = client.join(offer("victim", process_nonce=6))
        assert (agreement.incarnation, agreement.acknowledged_sequence) == (MAX_COUNT, 0)
        again = offer("victim", process_nonce=6, incarnation=agreement.incarnation)
        assert client.join(again).incarnation == MAX_COUNT
