import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from rollcast.actor.policies.exploration import EPSILONS
from rollcast.learner.ranks.rounds import RankRounds, RankState, Round, policy_digest
from rollcast.services.errors import RollcastError


class Others:
    """Answers as the other ranks would: with their states."""

    rank = 0

    def __init__(self, *states: RankState) -> None:
        self.states = states
        self.n_ranks = 1 + len(states)

    def gather(self, values: torch.Tensor, what: str) -> torch.Tensor:
        rows = [
            torch.tensor([float(value) for value in dataclasses.astuple(state)], dtype=torch.float64)
            for state in self.states
        ]
        return torch.stack([values, *rows])


def agreed(*states: RankState) -> Round:
    return RankRounds(Others(*states[1:])).agree(states[0])


def test_an_update_needs_one_batch_and_has_the_steps_of_all():
    nothing = agreed(RankState(), RankState())
    assert not nothing.has_batch
    some = agreed(RankState(env_steps=0), RankState(has_batch=True, env_steps=2**31, n_actors=3))
    assert some.has_batch
    assert some.env_steps == 2**31
    assert some.n_actors == [0, 3]


def test_any_rank_pauses_stops_and_saves_but_only_rank_0_ends():
    every = agreed(RankState(stops=1), RankState(is_paused=True, checkpoint=True, stops=2, ends=True))
    assert every.is_paused
    assert every.checkpoint
    assert every.stops == 2
    assert not every.ends
    assert agreed(RankState(ends=True), RankState()).ends


def test_importance_weights_have_one_largest():
    assert agreed(RankState(largest_weight=0.5), RankState(largest_weight=0.75)).largest_weight == 0.75


@pytest.mark.parametrize(
    ("digests", "message"),
    [((7, 7, 8), "rank 2 of 3 no longer has the policy of rank 0"), ((1, 2, 3), "ranks 1, 2 of 3 no longer have")],
)
def test_policies_that_differ_are_refused_with_their_ranks(digests: Sequence[int], message: str):
    with pytest.raises(RollcastError, match=message):
        agreed(*(RankState(digest=digest) for digest in digests))


def test_a_digest_is_that_of_the_weights_and_a_float64_holds_it():
    state = {"w": np.arange(4, dtype=np.float32), EPSILONS: np.zeros(2, np.float32)}
    digest = policy_digest(state)
    assert int(float(digest)) == digest > 0
    assert digest == policy_digest({**state, EPSILONS: np.ones(2, np.float32)}), "exploration differs between ranks"
    assert digest != policy_digest({**state, "w": np.array([0, 1, 2, 3.0000002], np.float32)})
