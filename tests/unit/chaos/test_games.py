"""The oracle of environments that dial in notices what it is there to notice, in rollouts of a real worker."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.workers.make import make_worker
from rollcast.services.environments.dialled import AgentState
from rollcast.services.rollouts.rollouts import Rollout
from tests.chaos.bookkeeping import EPISODE_STEPS, bookkeeping_spaces, observation, reward
from tests.chaos.games import Plays, Stretch, n_lives, seed_of_life, stretches
from tests.chaos.ledger import what_is_wrong
from tests.dialled_clients import FakeClient
from tests.unit.actor.acting_policies import loaded

NAME = "games-0"
SPACES = bookkeeping_spaces()
# Two lives of one client, and one of another.
FIRST, SECOND, OTHER = seed_of_life(1, 0, 0), seed_of_life(1, 1, 0), seed_of_life(2, 0, 0)


class Game(FakeClient):
    """A client with one life, which answers at once; after some steps it leaves, and the next one comes.

    Args:
        leaves_after: The number of steps; None: it stays.
    """

    def __init__(
        self, sink: DialledEnvironments, seed: int, name: str = "game", leaves_after: int | None = None
    ) -> None:
        super().__init__(sink, name, spaces=SPACES)
        self.seed, self.total = seed, 0
        self._leaves_after = leaves_after
        self.show()

    def show(self, **about: Any) -> None:
        self.turn(observation={"": observation(self.seed, np.array(self.total))}, **about)

    def answer(self, actions: Any, **about: Any) -> None:
        super().answer(actions, **about)
        if self.total == self._leaves_after:
            self.leave()
            Game(self._sink, SECOND)
            return
        earned = float(reward(observation(self.seed, np.array(self.total)), np.array(actions[0].actions[0])))
        self.total += 1
        if self.total % EPISODE_STEPS:
            self.show(reward=earned)
            return
        final = {"": observation(self.seed, np.array(self.total), final=True)}
        self.turn(AgentState.TERMINATED, earned, observation=final)
        self.show()


def played(n_steps: int = 12) -> list[Rollout]:
    """Returns rollouts in which a client leaves after 9 steps, and another comes to its place, beside a third."""
    environments = DialledEnvironments(address="here", spaces=SPACES)
    environments.agree(2)
    worker = make_worker(environments, loaded(SPACES), n_steps, actor_id=NAME, incarnation=1, env_seed=0)
    Game(environments, FIRST, leaves_after=9)
    Game(environments, OTHER, "other")
    return [worker.collect() for _ in range(6)]


def test_rollouts_that_are_right_have_no_entries():
    rollouts, plays = played(), Plays()
    assert [what_is_wrong(rollout) for rollout in rollouts] == [[]] * 6
    for rollout in rollouts:
        name = (rollout.actor_id, rollout.incarnation, rollout.sequence)
        # twice: a learner that was killed takes it again
        assert plays.enter(name, stretches(rollout)) is plays.enter(name, stretches(rollout)) is None
    assert plays.lives() == {FIRST, SECOND, OTHER}
    assert stretches(rollouts[0])[:2] == [Stretch(FIRST, 0, 9), Stretch(SECOND, 0, 3)]
    # it got a tenth action, and left
    assert plays.check({FIRST: 10, SECOND: 0, OTHER: 0}) == ([], [], [])
    lost, twice, disordered = plays.check({FIRST: 11, SECOND: 0, OTHER: 0})
    assert (len(lost), twice, disordered) == (1, [], [])


@pytest.mark.parametrize("what", ["observation", "action", "log_prob", "last_observation", "final_observation"])
def test_a_number_that_is_another_is_noted(what: str):
    rollout = played()[0]
    columns = rollout.substeps["0"]
    column = getattr(columns, what)
    array = column[""] if isinstance(column, dict) else column
    array.reshape(-1)[-1] += 2
    assert what_is_wrong(rollout) != []


@pytest.mark.parametrize("what", ["reward", "terminated", "truncated"])
def test_a_step_that_is_another_is_noted(what: str):
    rollout = played()[0]
    changed = getattr(rollout, what).copy()
    changed[-1, 0] = not changed[-1, 0]
    assert what_is_wrong(dataclasses.replace(rollout, **{what: changed})) != []


@pytest.mark.parametrize(
    ("of", "found"),
    [
        ([(0, 8), (8, 8)], (0, 0, 0)),
        ([(0, 8), (7, 8)], (0, 1, 0)),
        ([(0, 8), (9, 8)], (0, 0, 1)),
        ([(1, 8)], (1, 0, 0)),
    ],
)
def test_steps_that_are_missing_or_there_twice_are_noted(of: list[tuple[int, int]], found: tuple[int, int, int]):
    plays = Plays()
    for sequence, (first, n) in enumerate(of, 1):
        plays.enter((NAME, 1, sequence), [Stretch(FIRST, first, n)])
    assert tuple(map(len, plays.check({FIRST: 16}))) == found


def test_a_life_may_lose_steps_only_with_its_actor():
    plays = Plays()
    plays.enter((NAME, 1, 1), [Stretch(FIRST, 0, 4)])
    for sequence in range(1, 6):
        plays.enter((NAME, 2, sequence), [Stretch(SECOND, 8 * (sequence - 1), 8)])
    assert plays.check({FIRST: 9, SECOND: 40}) == ([], [], [])


def test_steps_may_be_missing_where_a_fault_has_destroyed_their_rollout():
    plays = Plays()
    plays.enter((NAME, 1, 1), [Stretch(FIRST, 0, 8)])
    # the life ends in rollout 2 or 4, and the next one begins in 2
    plays.enter((NAME, 1, 3), [Stretch(FIRST, 16, 8), Stretch(SECOND, 4, 8)])
    for sequence in range(5, 10):
        plays.enter((NAME, 1, sequence), [Stretch(SECOND, 8 * sequence - 20, 8)])
    given = {FIRST: 30, SECOND: 60}
    assert plays.check(given, {(NAME, 1): {2, 4}}) == ([], [], [])
    for destroyed in ({}, {(NAME, 2): {2, 4}}, {(NAME, 1): {1, 3, 6}}):
        assert tuple(map(len, plays.check(given, destroyed))) == (2, 0, 2), destroyed


def test_a_rollout_that_comes_again_with_other_steps_is_noted():
    plays = Plays()
    plays.enter((NAME, 1, 1), [Stretch(FIRST, 0, 4)])
    assert "had" in (plays.enter((NAME, 1, 1), [Stretch(FIRST, 0, 5)]) or "")


def test_lives_are_counted_by_their_streams():
    assert n_lives([seed_of_life(3, 0, 0), seed_of_life(3, 0, 1), seed_of_life(3, 1, 0)]) == 2
