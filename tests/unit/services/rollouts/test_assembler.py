"""Messages of rollouts, put together or refused."""

import dataclasses

import pytest

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import LimitExceededError
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.streams.receiver import parse_request
from tests.rollouts import NESTED, assert_same_rollout, random_rollout
from tests.unit.services.rollouts.test_codec import PIXELS, assemble


def test_leaves_come_in_any_order_and_are_returned_in_that_of_the_space():
    rollout = random_rollout(NESTED, 3, 2)
    columns = rollout.substeps["0"]
    shuffled = dataclasses.replace(columns, observation=dict(reversed(columns.observation.items())))
    mixed = dataclasses.replace(rollout, substeps={"0": shuffled})
    assert_same_rollout(assemble(NESTED, mixed, 3, 2), rollout)


def test_assembler_accepts_one_rollout_after_the_other():
    assembler = RolloutAssembler(RolloutShape(PIXELS, 100, 8))
    encoder = RolloutEncoder()
    for sequence in (1, 2):
        rollout = random_rollout(PIXELS, 100, 8, sequence=sequence, seed=sequence)
        messages = map(parse_request, encoder.encode(rollout))
        assert_same_rollout([assembler.add(*message) for message in messages][-1], rollout)


def test_rejects_rollout_above_limit_with_actor_column_and_sizes():
    with pytest.raises(
        LimitExceededError, match=r"actor 'a', rollout 1 has \d+ bytes, 24576 of them in column 0/obs.*1000"
    ):
        assemble(PIXELS, random_rollout(PIXELS, 3, 2), 3, 2, max_rollout_bytes=1000)
