import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.workers.dialled import DialInWorker
from rollcast.actor.workers.make import make_worker
from rollcast.services.environments.dialled import AgentState, AgentTurn, DialledTurn
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.dialled_clients import FakeClient
from tests.play_messages import FLAT, TEAM
from tests.processes import DEADLINE_S, wait_until
from tests.unit.actor.acting_policies import loaded, state_of

RUNNING, TERMINATED, INTERRUPTED = AgentState.RUNNING, AgentState.TERMINATED, AgentState.INTERRUPTED


def seen(step, number=0):
    """The observation of a step: its number, and that of the environment."""
    return {"": np.array([step, number], np.float32)}


class Game(FakeClient):
    """A client whose environments count their steps, and end an episode every few of them.

    It answers at once, in the thread that acts, but for environments that are paused.
    """

    def __init__(self, sink, name="game", *, n_envs=1, length=1000, end=TERMINATED, events=(), spaces=FLAT):
        self.steps = [0] * n_envs
        self.paused = set()
        self._length, self._ends, self._events = length, end, events
        super().__init__(sink, name, n_envs=n_envs, spaces=spaces)
        for number in range(n_envs):
            self.begin(number)

    def begin(self, number):
        self.steps[number] = 0
        self.turn(RUNNING, environment=number, observation=seen(0, number))

    def answer(self, actions, **about):
        super().answer(actions, **about)
        for number in [told.environment for told in actions if told.environment not in self.paused]:
            self.step(number)

    def step(self, number):
        self.steps[number] += 1
        step = self.steps[number]
        if step < self._length:
            self.turn(RUNNING, 1.0, environment=number, observation=seen(step, number))
            return
        agent = AgentTurn("0", 0, self._ends, seen(step, number), 1.0)
        self._sink.take(self, [DialledTurn(number, (agent,), self._events)])
        self.begin(number)


@pytest.fixture
def policy():
    return loaded(FLAT)


def worker_of(policy, n_envs=1, n_steps=4, **options):
    environments = DialledEnvironments(address="here", spaces=policy.spaces, **options)
    environments.agree(n_envs)
    worker = make_worker(environments, policy, n_steps, actor_id="a", incarnation=1, env_seed=0)
    assert isinstance(worker, DialInWorker)
    return worker, environments


def test_rows_are_what_was_seen_done_and_earned(policy):
    worker, environments = worker_of(policy)
    game = Game(environments, length=3)
    first, second = worker.collect(), worker.collect()
    assert (first.sequence, second.sequence) == (1, 2)
    observation = np.concatenate([rollout.substeps["0"].observation[""][:, 0, 0] for rollout in (first, second)])
    np.testing.assert_array_equal(observation, [0, 1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(first.terminated[:, 0], [False, False, True, False])
    np.testing.assert_array_equal(first.reward[:, 0], [1.0] * 4)
    np.testing.assert_array_equal(first.substeps["0"].final_observation[""], [[3, 0]])
    np.testing.assert_array_equal(first.substeps["0"].last_observation[""], [[1, 0]])
    assert first.valid is None
    assert [(episode.episode_return, episode.n_steps) for episode in first.episodes] == [(3.0, 3)]
    done = np.concatenate([rollout.substeps["0"].action[:, 0] for rollout in (first, second)])
    np.testing.assert_array_equal(done, [int(told.actions[0]) for told in game.answers[:8]])


def test_the_thread_of_the_server_answers_while_the_acting_one_waits(policy):
    n_steps, acted_in = 100, []

    class Watched(Game):
        def answer(self, actions, **about):
            acted_in.append(threading.get_ident())
            super().answer(actions, **about)

    worker, environments = worker_of(policy, n_steps=n_steps)
    environments.attach(lambda _at: None)
    game = Watched(environments)
    game.paused = {0}
    with ThreadPoolExecutor(1) as threads:
        rollout = threads.submit(worker.collect)
        for step in range(n_steps):
            wait_until(lambda step=step: len(game.answers) > step, f"the answer to step {step}", every_s=0.0001)
            game.step(0)
        rollout = rollout.result(DEADLINE_S)
    np.testing.assert_array_equal(rollout.substeps["0"].observation[""][:, 0, 0], range(n_steps))
    assert threading.get_ident() in acted_in


def test_seeds_are_told_to_clients_and_to_the_learner(policy):
    worker, environments = worker_of(policy, n_envs=2)
    game = Game(environments, n_envs=2)
    assert tuple(game.seeds) == worker.env_seeds == worker.collect().env_seeds


def test_places_without_a_client_have_rows_that_are_not_valid(policy):
    worker, environments = worker_of(policy, n_envs=3)
    Game(environments, n_envs=2)
    rollout = worker.collect()
    np.testing.assert_array_equal(rollout.valid, [[True, True, False]] * 4)
    assert rollout.n_env_steps == 8


def test_such_rows_hold_values_of_their_spaces():
    """A learner checks them as well."""
    numbered = spaces.Discrete(3, start=5)
    offered = {"0": SubstepSpaces(observation=numbered, action=spaces.Discrete(2, start=3))}
    worker, environments = worker_of(loaded(offered), n_envs=2, n_steps=2)

    class Counting(FakeClient):
        def answer(self, actions, **about):
            super().answer(actions, **about)
            self.turn(observation={"": np.array(6)})

    client = Counting(environments, spaces=offered)
    client.turn(observation={"": np.array(6)})
    rollout = worker.collect()
    assert rollout.substeps["0"].action.min() >= 3
    assert rollout.substeps["0"].observation[""].min() >= 5


def test_nobody_waits_for_the_slowest(policy):
    worker, environments = worker_of(policy, n_envs=2)
    game = Game(environments, n_envs=2)
    game.paused.add(1)
    rollout = worker.collect()
    np.testing.assert_array_equal(rollout.valid[:, 0], [True] * 4)
    assert not rollout.valid[:, 1].any()
    game.paused.clear()
    game.step(1)
    rollout = worker.collect()
    assert rollout.valid is None, "the row of the slow one was carried over"


def test_a_batch_has_a_size_at_most_and_the_oldest_first(policy, monkeypatch):
    monkeypatch.setattr("rollcast.actor.dialling.batch_rule.PATIENCE", 1e9)
    worker, environments = worker_of(policy, n_envs=5, n_steps=3, batch_size=2)
    Game(environments, n_envs=5)
    batches, act = [], environments.act

    def noted(actions, **about):
        batches.append(list(actions))
        act(actions, **about)

    environments.act = noted
    assert worker.collect().valid is None
    assert [place for batch in batches for place in batch][:15] == [0, 1, 2, 3, 4] * 3
    assert max(map(len, batches)) == 2


def leaves_after(client, n_answers, then=lambda: None):
    """Has a client leave when it has so many answers."""
    answer = client.answer

    def answers(actions, **about):
        answer(actions, **about)
        if len(client.answers) == n_answers:
            client.leave()
            then()

    client.answer = answers


class Shuffled(Game):
    """A client whose environments go on in a random order, some of them at a time, and that notes every step.

    Attributes:
        log: By environment: each observation that was acted on, with the action and whether the episode ended.
    """

    def __init__(self, sink, rng, *, n_envs, length):
        self.log = [[] for _ in range(n_envs)]
        self._rng, self._pending, self._waits = rng, [], sink.wait
        sink.wait = self.wait
        super().__init__(sink, n_envs=n_envs, length=length)

    def answer(self, actions, **about):
        FakeClient.answer(self, actions, **about)
        for told in actions:
            step = self.steps[told.environment]
            self.log[told.environment].append((step, int(told.actions[0]), step + 1 == self._length))
            self._pending.append(told.environment)

    def wait(self, *arguments, **options):
        for number in self._rng.permutation(self._pending)[: self._rng.integers(1, len(self.log) + 1)]:
            self._pending.remove(number)
            self.step(number)
        return self._waits(*arguments, **options)


@pytest.mark.parametrize("seed", range(20))
def test_every_step_is_recorded_once_and_in_order_whoever_is_ahead(policy, monkeypatch, seed):
    monkeypatch.setattr("rollcast.actor.dialling.batch_rule.PATIENCE", 0.0 if seed % 4 else 0.1)
    rng = np.random.default_rng(seed)
    worker, environments = worker_of(policy, n_envs=4, n_steps=20)
    game = Shuffled(environments, rng, n_envs=4, length=int(rng.integers(2, 30)))
    rollouts = [worker.collect() for _ in range(6)]
    for number, log in enumerate(game.log):
        steps = []
        for rollout in rollouts:
            columns, valid = rollout.substeps["0"], slice(None) if rollout.valid is None else rollout.valid[:, number]
            assert (columns.observation[""][valid, number, 1] == number).all()
            found = (columns.observation[""][valid, number, 0], columns.action[valid, number])
            steps += zip(*found, rollout.terminated[valid, number], strict=True)
        assert steps == log[: len(steps)]
        assert len(log) - len(steps) <= 2, "those ahead, the last of which may have no result yet"
    for rollout in rollouts:
        assert sorted(map(tuple, rollout.final_index)) == list(map(tuple, np.argwhere(rollout.terminated)))


def test_a_rollout_has_the_version_of_its_oldest_row(policy):
    worker, environments = worker_of(policy, n_envs=2)
    game = Game(environments, n_envs=2)
    game.paused.add(1)
    assert worker.collect().policy_version == 1
    policy.load(2, state_of(FLAT))
    game.paused.clear()
    game.step(1)
    mixed = worker.collect()
    assert mixed.policy_version == 1
    # The quick one had begun its first step ahead, and the paused one had not ended its.
    np.testing.assert_array_equal(mixed.policy_versions, [[1, 1]] + [[2, 2]] * 3)
    of_one = worker.collect()
    assert (of_one.policy_version, of_one.policy_versions) == (2, None)


def test_a_learner_that_takes_no_older_version_gets_the_newest(policy):
    worker, environments = worker_of(policy, n_envs=2)
    game = Game(environments, n_envs=2)
    game.paused.add(1)
    worker.collect()
    policy.load(2, state_of(FLAT))
    game.paused.clear()
    game.step(1)
    worker.least_version = 2
    rollout = worker.collect()
    assert rollout.policy_version == 2
    assert rollout.policy_versions[0, 1] == 1, "the step's own is told all the same"


def test_a_client_that_leaves_costs_its_own_last_action(policy):
    worker, environments = worker_of(policy, n_envs=2, n_steps=6)
    stays, goes = Game(environments, "stays"), Game(environments, "goes")
    leaves_after(goes, 4)
    rollout = worker.collect()
    assert rollout.valid[:, 0].all()
    # That of the fourth: it left before the turn that came of it was heard.
    np.testing.assert_array_equal(rollout.valid[:, 1], [False] * 3 + [True] * 3)
    np.testing.assert_array_equal(np.flatnonzero(rollout.truncated[:, 1]), [5])
    assert rollout.episodes == ()
    assert worker.dropped_episodes == 1
    assert len(stays.answers) == 6


def test_an_episode_counts_whose_client_leaves_after_its_end(policy):
    worker, environments = worker_of(policy, n_envs=2, n_steps=6)
    stays, goes = Game(environments, "stays"), Game(environments, "goes", length=4)
    goes.begin = lambda number: goes.leave()
    rollout = worker.collect()
    np.testing.assert_array_equal(rollout.valid[:, 1], [False] * 2 + [True] * 4)
    np.testing.assert_array_equal(np.flatnonzero(rollout.terminated[:, 1]), [5])
    assert not rollout.truncated.any()
    assert [(episode.episode_return, episode.n_steps) for episode in rollout.episodes] == [(4.0, 4)]
    assert worker.dropped_episodes == 0
    assert len(stays.answers) == 6


def test_a_client_that_returns_begins_a_new_episode(policy):
    worker, environments = worker_of(policy, n_steps=4)
    leaves_after(Game(environments, "a", length=5), 2, lambda: Game(environments, "a", length=5))
    rollouts = [worker.collect(), worker.collect()]
    steps = np.concatenate([rollout.substeps["0"].observation[""][:, 0, 0] for rollout in rollouts])
    np.testing.assert_array_equal(steps, [0, 0, 1, 2, 3, 4, 0, 1])
    assert [episode.n_steps for rollout in rollouts for episode in rollout.episodes] == [5]


def test_values_of_an_episode_travel_with_it(policy):
    statistic = EventStatistic(event="score", name="", epoch=(EpochStatistic(name="", reduction="mean"),))
    worker, environments = worker_of(policy)
    Game(environments, length=2, end=INTERRUPTED, events=(EventValue(statistic, (), 7.0),))
    rollout = worker.collect()
    assert [episode.events for episode in rollout.episodes] == [(EventValue(statistic, (), 7.0),)] * 2
    np.testing.assert_array_equal(np.flatnonzero(rollout.truncated[:, 0]), [1, 3])


def test_agents_that_act_at_once_each_get_their_own_action_and_reward_in_the_order_of_their_turn():
    worker, environments = worker_of(loaded(TEAM), n_envs=2, n_steps=3)
    walker = {"": np.zeros(2, np.float32)}
    gunner = {"view": np.zeros((2, 2), np.uint8), "ammo": np.array(3)}
    # the policy acts for all gunners, then for all walkers
    orders = {0: (("gunner", 0),), 1: (("walker", 0), ("gunner", 0), ("walker", 1))}

    class Team(FakeClient):
        def go(self, number):
            told = [
                AgentTurn(key, agent, RUNNING, walker if key == "walker" else gunner, number + 2.0 * agent)
                for key, agent in orders[number]
            ]
            self._sink.take(self, [DialledTurn(number, tuple(told))])

        def answer(self, actions, **about):
            super().answer(actions, **about)
            for told in actions:
                self.go(told.environment)

    team = Team(environments, n_envs=2, spaces=TEAM)
    team.go(0)
    team.go(1)
    rollouts = {rollout.substep_key: rollout for rollout in (worker.collect(), worker.collect())}
    np.testing.assert_array_equal(rollouts["walker"].reward[:, 2:], [[1.0, 3.0]] * 3)
    np.testing.assert_array_equal(rollouts["gunner"].reward, [[0.0, 1.0]] * 3)
    walked, shot = (rollouts[key].substeps[key].action for key in ("walker", "gunner"))
    told = [answer.actions for answer in team.answers if answer.environment == 1]
    # those of a Box are inside its bounds, as the environment executes them
    for t in range(3):
        np.testing.assert_array_equal(told[t][0], np.clip(walked[t, 2], -1.0, 1.0))
        np.testing.assert_array_equal(told[t][1], shot[t, 1])
        np.testing.assert_array_equal(told[t][2], np.clip(walked[t, 3], -1.0, 1.0))


class Corrected(Game):
    """A client some of whose actions others choose, by the number of the step; each is `(action, chosen_by)`."""

    def __init__(self, sink, corrections, **about):
        self.corrections = corrections
        super().__init__(sink, **about)

    def step(self, number):
        self.steps[number] += 1
        action, chosen_by = self.corrections(self.steps[number] - 1, self.answers[-1].actions[0])
        agent = AgentTurn("0", 0, RUNNING, seen(self.steps[number], number), 1.0, action, chosen_by)
        self._sink.take(self, [DialledTurn(number, (agent,))])


def test_actions_of_others_are_recorded_and_marked(policy):
    worker, environments = worker_of(policy, n_steps=5)
    corrections = {
        0: lambda sent: ((sent + 1) % 3, ""),
        1: lambda sent: (np.array(sent), ""),
        2: lambda sent: (np.array(sent), "a human"),
        3: lambda sent: (None, "a planner"),
    }
    game = Corrected(environments, lambda step, sent: corrections.get(step % 5, lambda _: (None, ""))(sent))
    for _ in range(2):
        del game.answers[:]
        rollout = worker.collect()
        assert rollout.policy_version == 1
        np.testing.assert_array_equal(rollout.policy_versions[:, 0], [-1, 1, -1, -1, 1])
        sent = np.array([int(told.actions[0]) for told in game.answers[:5]])
        np.testing.assert_array_equal(rollout.substeps["0"].action[:, 0], [(sent[0] + 1) % 3, *sent[1:]])


def test_an_action_outside_the_bounds_that_was_carried_out_inside_is_the_policys():
    """The row keeps what the policy chose, to which the log-probability belongs."""
    boxed = {"0": SubstepSpaces(observation=FLAT["0"].observation, action=spaces.Box(-0.1, 0.1, (1,), np.float32))}
    worker, environments = worker_of(loaded(boxed), n_steps=8)
    Corrected(environments, lambda step, sent: (sent if step % 2 else -7.0 * np.sign(sent), ""), spaces=boxed)
    rollout = worker.collect()
    action = rollout.substeps["0"].action[:, 0, 0]
    np.testing.assert_array_equal(rollout.policy_versions[:, 0], [-1, 1] * 4)
    np.testing.assert_allclose(np.abs(action[::2]), 0.1, err_msg="clipped as every executed action is")
    assert (np.abs(action[1::2]) > 0.1).any()


class TestWithoutClients:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr("rollcast.actor.workers.dialled.IDLE_S", 0.0)
        monkeypatch.setattr("rollcast.actor.workers.dialled.LOOK_S", 0.01)

    def test_there_is_nothing_to_do(self, policy):
        worker, _ = worker_of(policy)
        assert worker.collect() is None
        assert worker.is_idle

    def test_the_rows_that_there_are_make_a_rollout(self, policy):
        worker, environments = worker_of(policy, n_steps=6)
        leaves_after(Game(environments), 4)
        assert worker.collect().n_env_steps == 3
        assert worker.collect() is None
        assert worker.is_idle

    def test_one_whose_first_turn_is_late_is_waited_for(self, policy):
        worker, environments = worker_of(policy)
        FakeClient(environments)
        looks = iter(range(5))
        assert worker.collect(lambda: next(looks, None) is None) is None
        assert not worker.is_idle

    def test_a_stop_is_not_idleness(self, policy):
        worker, _ = worker_of(policy)
        assert worker.collect(lambda: True) is None
        assert not worker.is_idle
