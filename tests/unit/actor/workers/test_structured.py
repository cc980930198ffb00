import functools
import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.actor.environments.structured import ActorId, SingleAgentEnv
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.actor.workers.structured import StructuredRolloutWorker
from rollcast.services.errors import ConfigurationError, NotReadyError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.event_environments import StepEvents
from tests.rollouts import assert_same_rollout, transitions_of
from tests.unit.actor.acting_policies import loaded
from tests.unit.actor.structured_environments import (
    ACTORS,
    SPACES,
    Scripted,
    ScriptedEnv,
    alternating,
    expected_transitions,
    worker_of,
)

CARTPOLE = {"0": SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (4,), np.float32), action=spaces.Discrete(2))}


@st.composite
def scripts(draw):
    """Episodes in which agents act at once, in turn or never, and end when they like."""
    episodes = []
    for _ in range(draw(st.integers(1, 3))):
        alive, acted, turns = set(ACTORS), set(), []
        for turn in range(draw(st.integers(1, 8))):
            ended = {}
            if turn:
                ended = {actor: draw(st.booleans()) for actor in sorted(alive) if draw(st.integers(0, 5)) == 0}
                alive -= ended.keys()
            acting = tuple(actor for actor in sorted(alive) if draw(st.booleans()))
            if not acting:
                acting = tuple(sorted(alive))[:1]
            rewarded = sorted(alive | ended.keys()) if turn else []
            rewards = {actor: float(draw(st.integers(-3, 3))) for actor in rewarded if draw(st.booleans())}
            acted -= ended.keys()
            acted |= set(acting)
            turns.append(Scripted(acting, rewards, ended))
            if not acting:
                break
        if turns[-1].acting:
            turns.append(
                Scripted(
                    (), dict.fromkeys(alive & {ACTORS[0]}, 1.0), {actor: draw(st.booleans()) for actor in sorted(acted)}
                )
            )
        if turns[0].acting:
            episodes.append(turns)
    return episodes


@pytest.mark.slow
@given(st.lists(scripts(), min_size=1, max_size=3), st.integers(1, 7))
@settings(max_examples=50)
def test_every_action_of_everybody_is_recorded_once_with_what_came_of_it(environments, n_steps):
    worker = worker_of(*(ScriptedEnv(episodes) for episodes in environments), n_steps=n_steps)
    found = {(index, actor): [] for index in range(len(environments)) for actor in ACTORS}
    for sequence in range(1, 13):
        rollout = worker.collect()
        assert rollout.sequence == sequence
        (key,) = rollout.substeps
        n_agents = SPACES[key].n_agents
        assert rollout.reward.shape == (n_steps, len(environments) * n_agents)
        for trajectory in range(rollout.n_envs):
            actor = ActorId(key, trajectory % n_agents)
            found[trajectory // n_agents, actor] += transitions_of(rollout, trajectory)
    assert sum(map(len, found.values())) > 0
    for (index, actor), transitions in found.items():
        expected = expected_transitions(environments[index], 200)[actor]
        assert transitions == expected[: len(transitions)]


def test_agents_that_take_turns_fill_whole_rollouts():
    """An incomplete transition at the end of a rollout is the first row of the next: no wait, no padding."""
    worker = worker_of(ScriptedEnv([alternating(10_000)]), n_steps=5)
    rollouts = [worker.collect() for _ in range(12)]
    assert all(rollout.valid is None for rollout in rollouts)
    assert {tuple(rollout.substeps) for rollout in rollouts} == {("walker",), ("guide",)}


def test_an_agent_that_has_died_leaves_rows_that_are_none():
    first, second, _ = ACTORS
    episode = [Scripted((first, second)), Scripted((first,), {}, {second: False})]
    episode += [Scripted((first,))] * 9 + [Scripted((), {}, {first: True})]
    rollout = worker_of(ScriptedEnv([episode]), n_steps=6).collect()
    assert rollout.valid.sum(axis=0).tolist() == [6, 1]
    assert rollout.valid[:, 1].tolist() == [False] * 5 + [True]
    assert rollout.terminated[:, 1].tolist() == [False] * 5 + [True]
    assert rollout.final_index.tolist() == [[5, 1]]


def test_episodes_are_told_by_agent():
    worker = worker_of(ScriptedEnv([alternating(4, truncated=True)]), n_steps=3)
    episodes = {"walker": [], "guide": []}
    for rollout in itertools.islice(iter(worker.collect, None), 8):
        episodes[next(iter(rollout.substeps))] += rollout.episodes
    # Both walkers act twice in an episode of four turns. The first earns 1 after each but the last; everybody 10 then.
    walkers = [(episode.env_index, episode.episode_return, episode.n_steps) for episode in episodes["walker"][:2]]
    assert walkers == [(0, 13.0, 2), (1, 10.0, 2)]
    assert [(e.env_index, e.episode_return, e.n_steps) for e in episodes["guide"][:1]] == [(0, 10.0, 2)]


def test_one_forward_pass_for_all_that_act_in_a_substep():
    policy, asked = loaded(SPACES), []
    act = policy.act
    policy.act = lambda observation, **arguments: (
        asked.append((arguments["substep_key"], len(next(iter(observation.values()))))) or act(observation, **arguments)
    )
    both = [[Scripted((ACTORS[0], ACTORS[1]))] * 50 + [Scripted((), {}, dict.fromkeys(ACTORS[:2], False))]]
    worker_of(*(ScriptedEnv(both) for _ in range(3)), n_steps=4, policy=policy).collect()
    assert set(asked) == {("walker", 6)}


def test_log_probabilities_are_those_of_the_version_that_acted():
    """The row that is carried over was played with the version before."""
    spec = PolicySpec()
    policy = make_policy(SPACES, spec, seed=0)
    first, second = (TorchPolicy(SPACES, spec) for _ in range(2))
    with np.errstate(all="ignore"):
        second.networks["walker"].layers[-1].bias.data[0] = 5.0
    policy.load(1, first.state_arrays())
    worker = worker_of(ScriptedEnv([alternating(1000)]), n_steps=4, policy=policy)
    played = [worker.collect() for _ in range(2)]
    policy.load(2, second.state_arrays())
    played += [worker.collect() for _ in range(2)]
    walkers = [rollout for rollout in played if "walker" in rollout.substeps]
    assert [rollout.policy_version for rollout in walkers] == [1, 2]
    assert walkers[0].policy_versions is None
    assert walkers[1].policy_versions[0, 0] == 1
    assert (walkers[1].policy_versions[1:] == 2).all()
    reference = make_policy(SPACES, spec, seed=0)
    for version, state, rollout, rows in (
        (1, first, walkers[0], np.s_[:, :]),
        (2, second, walkers[1], np.s_[1:, :]),
        (1, first, walkers[1], np.s_[0, :1]),
    ):
        reference.load(version, state.state_arrays())
        columns = rollout.substeps["walker"]
        observation, action = columns.observation[""][rows], columns.action[rows]
        _, parameters = reference.act({"": observation.reshape(-1, 3)}, substep_key="walker")
        expected = reference.log_prob(parameters, action.reshape(-1), "walker")
        np.testing.assert_allclose(columns.log_prob[rows].reshape(-1), expected, rtol=1e-5, atol=1e-6)


def test_environments_are_seeded_once_and_agents_share_the_seed():
    envs = ScriptedEnv([alternating(3)]), ScriptedEnv([alternating(3)])
    worker = worker_of(*envs, n_steps=8, env_seed=(7, 8))
    rollout = worker.collect()
    assert [env.seeds[:2] for env in envs] == [[7, None], [8, None]]
    assert rollout.env_seeds == (7, 7, 8, 8)
    with pytest.raises(ConfigurationError, match="env_seed has 1 seeds; expected 2"):
        worker_of(*envs, env_seed=(7,))


def test_a_rollout_may_be_interrupted_and_goes_on():
    worker = worker_of(ScriptedEnv([alternating(9)]), n_steps=4)
    answers = iter([False, False, True])
    assert worker.collect(lambda: next(answers)) is None
    assert next(transitions_of(worker.collect(), 0))[0] == (0, 0, 0)


def test_what_cannot_be_right_is_refused():
    only_walkers = RandomPolicy({"walker": SPACES["walker"]}, seed=0)
    with pytest.raises(ConfigurationError, match=r"no substep 'guide', only \['walker'\]; expected all of"):
        worker_of(ScriptedEnv([alternating(3)]), policy=only_walkers)
    with pytest.raises(NotReadyError):
        worker_of(ScriptedEnv([alternating(3)]), policy=make_policy(SPACES, PolicySpec(), seed=0)).collect()


def test_a_gymnasium_environment_is_one_with_one_agent():
    """Its transitions are those that the worker for flat environments records."""
    policy = loaded(CARTPOLE, seed=3)
    factory = functools.partial(gymnasium.make, "CartPole-v1")
    flat_env = SyncVectorEnv([factory], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    arguments = {"actor_id": "a", "incarnation": 1, "env_seed": (7,)}
    flat = RolloutWorker(flat_env, policy, 40, **arguments)
    expected = [flat.collect() for _ in range(3)]
    policy.seed(3)
    structured_env = StructuredVectorEnv([lambda: SingleAgentEnv(factory())])
    structured = StructuredRolloutWorker(structured_env, policy, 40, **arguments)
    for rollout in expected:
        found = structured.collect()
        assert sum(episode.n_steps for episode in rollout.episodes) > 0
        assert_same_rollout(found, rollout, log_prob_atol=1e-6)


class FiringGame(FiresEvents, ScriptedEnv):
    """Fires its turn's number in every turn."""

    def step(self, actions):
        turn = super().step(actions)
        self.events(StepEvents).step_made("any", float(self._turn))
        return turn


def test_events_of_an_episode_are_told_once():
    """Three agents end in an episode of three turns, in two substeps: the events are with one of them."""
    worker = worker_of(FiringGame([alternating(3)]), n_steps=4)
    episodes = [episode for rollout in (worker.collect() for _ in range(8)) for episode in rollout.episodes]
    told = [episode.events for episode in episodes if episode.events]
    assert len(episodes) >= 6
    assert abs(len(told) - len(episodes) / 3) < 1
    totals = [value.value for value in told[0] if value.statistic.name == "total"]
    assert totals == [1 + 2 + 3]


class FiringMoves(FiresEvents, RandomPolicy):
    def act(self, observation, **arguments):
        self.events(StepEvents).step_made("any", 1.0)
        return super().act(observation, **arguments)


def test_events_of_a_policy_are_told_once_for_all_rollouts_of_a_round():
    policy = FiringMoves(SPACES, seed=0)
    policy.load(1, {})
    worker = worker_of(ScriptedEnv([alternating(50)]), n_steps=4, policy=policy)
    first, second = worker.collect(), worker.collect()
    assert first.events
    assert not second.events
