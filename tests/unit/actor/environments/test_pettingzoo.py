import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from mpe2 import simple_speaker_listener_v4, simple_spread_v3
from pettingzoo import AECEnv, ParallelEnv

from rollcast.actor.environments import action_mask
from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.environments.pettingzoo import SimultaneousAgentsEnv, TurnTakingAgentsEnv, adapt_pettingzoo
from rollcast.actor.environments.structured import ActorId
from rollcast.actor.playing.evaluate import evaluate_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.services.errors import ConfigurationError
from tests.unit.actor.workers.flat_workers import worker_of

X, O = ActorId("player", 0), ActorId("player", 1)  # noqa: E741
PLACE = spaces.Discrete(9)


def test_plays_agents_that_act_at_once():
    env = adapt_pettingzoo(simple_spread_v3.parallel_env(N=3, max_cycles=2))
    assert isinstance(env, SimultaneousAgentsEnv)
    (substep,) = env.spaces.values()
    assert list(env.spaces) == ["agent"]
    assert (substep.n_agents, substep.observation.shape, substep.action) == (3, (18,), spaces.Discrete(5))
    agents = [ActorId("agent", index) for index in range(3)]
    turn = env.reset(seed=1)
    assert list(turn.observations) == agents
    turn = env.step(dict.fromkeys(agents, 0))
    assert list(turn.observations) == list(turn.rewards) == agents
    assert not turn.ended
    turn = env.step(dict.fromkeys(agents, 0))
    assert not turn.observations
    assert list(turn.ended) == agents
    assert all(ended.truncated for ended in turn.ended.values())
    env.close()


@pytest.mark.parametrize("agent_policies", ["shared", "separate"])
@pytest.mark.parametrize("with_masks", [False, True])
def test_an_evaluation_names_agents_as_pettingzoo_does(agent_policies: str, with_masks: bool):
    class Duel(ParallelEnv):
        def __init__(self):
            self.possible_agents = ["red", "blue"]

        def observation_space(self, agent):
            return PLACE

        action_space = observation_space

        def reset(self, seed=None, options=None):
            self.agents = list(self.possible_agents)
            return self._of(0), self._of({"action_mask": np.ones(9, np.int8)})

        def step(self, actions):
            self.agents = []
            infos = self._of({"action_mask": np.ones(9, np.int8)})
            return self._of(0), {"red": 1.0, "blue": 2.0}, self._of(True), self._of(False), infos

        def _of(self, value):
            return dict.fromkeys(self.possible_agents, value)

    def make():
        env = adapt_pettingzoo(Duel(), agent_policies)
        return action_mask.StructuredActionMaskFromInfo(env) if with_masks else env

    evaluation = evaluate_policy(make, RandomPolicy(make().spaces, seed=0), n_episodes=2, seed=0, deterministic=False)
    assert evaluation.agent_returns == {"red": 1.0, "blue": 2.0}


def test_same_seed_gives_same_first_observations():
    first, second = (adapt_pettingzoo(simple_spread_v3.parallel_env()).reset(seed=7) for _ in range(2))
    for actor, seen in first.observations.items():
        np.testing.assert_array_equal(seen, second.observations[actor])


def test_each_kind_of_agents_has_its_substep():
    env = adapt_pettingzoo(simple_speaker_listener_v4.parallel_env())
    assert {key: (s.n_agents, s.observation.shape, s.action.n) for key, s in env.spaces.items()} == {
        "speaker": (1, (3,), 3),
        "listener": (1, (11,), 5),
    }


def test_each_separate_policy_has_its_substep():
    env = adapt_pettingzoo(simple_spread_v3.parallel_env(N=2), "separate")
    assert {key: substep.n_agents for key, substep in env.spaces.items()} == {"agent_0": 1, "agent_1": 1}
    assert set(env.reset(seed=0).observations) == {ActorId("agent_0"), ActorId("agent_1")}


def test_plays_agents_that_take_turns():
    env = adapt_pettingzoo(pettingzoo.make("aec", "classic/tictactoe-v3"))
    assert isinstance(env, TurnTakingAgentsEnv)
    assert {key: (s.n_agents, s.action) for key, s in env.spaces.items()} == {"player": (2, PLACE)}
    turn = env.reset(seed=0)
    assert list(turn.observations) == [X]
    for actor, place in ((X, 0), (O, 3), (X, 1), (O, 4)):
        assert list(turn.observations) == [actor]
        assert turn.observations[actor]["action_mask"][place] == 1
        turn = env.step({actor: place})
        assert not turn.ended
    turn = env.step({X: 2})
    assert not turn.observations
    assert dict(turn.rewards) == {X: 1, O: -1}, "the loser learns of it though it has not acted since"
    assert {actor: ended.truncated for actor, ended in turn.ended.items()} == {X: False, O: False}
    assert list(env.reset().observations) == [X], "again"


class Forgetful(ParallelEnv):
    """Its agent ends in the first step; with an observation and a mask, or without the one or the other."""

    metadata = {"name": "forgetful"}  # noqa: RUF012
    possible_agents = ["a_0"]  # noqa: RUF012

    def __init__(self, observes_end=True, mask=(1, 0, 1)):
        self._observes_end, self._infos = observes_end, {"a_0": {} if mask is None else {"action_mask": mask}}

    def observation_space(self, agent):
        return spaces.Discrete(2)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = ["a_0"]
        return {"a_0": 0}, self._infos

    def step(self, actions):
        self.agents = []
        return {"a_0": 1} if self._observes_end else {}, {"a_0": 1.0}, {"a_0": False}, {"a_0": True}, {}


def forgetful(**kwargs):
    return Forgetful(**kwargs)


def test_names_the_agent_whose_last_observation_is_left_out():
    env = make_vector_env(EnvironmentFactory(f"{__name__}:forgetful", {"observes_end": False}), 1)
    env.reset(0, seed=3)
    with pytest.raises(
        EnvironmentFailedError,
        match=r"environment 0 \(seed 3\) returned a wrong value from step\(\): the observations lack 'a_0'",
    ):
        env.step(0, {ActorId("a"): 0})
    env.close()


class Loose(ParallelEnv):
    """Its first agent ends in the first step, its second is cut off in the third; `forms` change what it returns."""

    metadata = {"name": "loose"}  # noqa: RUF012
    possible_agents = ["a_0", "a_1"]  # noqa: RUF012

    def __init__(self, *forms):
        self._forms = forms

    def observation_space(self, agent):
        return spaces.Discrete(9)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self._n_steps = list(self.possible_agents), 0
        observations = dict.fromkeys(self.agents, 0)
        return observations if "old reset" in self._forms else (observations, {"__common__": {}, "a_0": {}})

    def step(self, actions):
        self._n_steps += 1
        acted, self.agents = self.agents, [["a_1"], ["a_1"], []][self._n_steps - 1]
        observations, rewards = dict.fromkeys(acted, self._n_steps), dict.fromkeys(acted, 1.0)
        terminated, truncated = {"a_0": True, "a_1": False}, {"a_0": False, "a_1": not self.agents}
        if "one flag" in self._forms:
            terminated, truncated = ({"a_0": True}, {}) if self._n_steps == 1 else ({}, {"a_1": not self.agents})
        if "a stranger" in self._forms:
            self.agents = [*self.agents, "b_9"]
        if "a stranger's reward" in self._forms:
            rewards["b_9"] = 1.0
        infos = {"__common__": {"n": 1}}
        if "old step" in self._forms:
            return observations, rewards, terminated, infos
        return observations, rewards, terminated | {"__all__": not self.agents}, truncated, infos


@pytest.mark.parametrize("forms", [(), ("one flag",)])
def test_ends_are_told_once_and_more_or_fewer_names_are_borne(forms):
    vector_env = StructuredVectorEnv([lambda: adapt_pettingzoo(Loose(*forms))])
    turn, ends = vector_env.reset(0), []
    while turn.observations:
        turn = vector_env.step(0, dict.fromkeys(turn.observations, 0))
        ends.append(
            [(actor.agent_index, end.observation[""].item(), end.truncated) for actor, end in turn.ended.items()]
        )
    assert ends == [[(0, 1, False)], [], [(1, 3, True)]]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("old reset", r"reset\(\): reset\(\) returned a dict; expected \(observation, info\)"),
        ("old step", r"step\(\): step\(\) returned a tuple of 4.*; expected \(observation, reward, terminated"),
        ("a stranger", r"step\(\): it has the agent 'b_9'; expected one of its possible_agents, \['a_0', 'a_1'\]"),
        ("a stranger's reward", r"step\(\): it has the agent 'b_9'; expected one of its possible_agents"),
    ],
)
def test_names_what_no_parallel_environment_returns(form, problem):
    vector_env = StructuredVectorEnv([lambda: adapt_pettingzoo(Loose(form))])
    with pytest.raises(
        EnvironmentFailedError, match=rf"environment 0 \(seed 3\) returned a wrong value from {problem}"
    ):
        vector_env.step(0, dict.fromkeys(vector_env.reset(0, seed=3).observations, 0))


def test_moves_masks_in_infos_to_what_agents_see():
    env = action_mask.make(f"{__name__}:forgetful")
    assert set(env.spaces["a"].observation.spaces) == {"observation", "action_mask"}
    seen = env.reset().observations[ActorId("a")]
    assert (seen["observation"], seen["action_mask"].tolist()) == (0, [1, 0, 1])
    end = env.step({ActorId("a"): 2}).ended[ActorId("a")]
    assert end.truncated
    assert (end.observation["observation"], end.observation["action_mask"].tolist()) == (1, [1, 1, 1])
    env.close()


@pytest.mark.parametrize(("mask", "found"), [(None, r"only \[\]"), ((1, 1), r"a mask of shape \[2\]")])
def test_refuses_infos_without_the_right_mask(mask, found):
    env = action_mask.make(f"{__name__}:forgetful", mask=mask)
    with pytest.raises(ConfigurationError, match=rf"info of ActorId.*'a'.* has {found}; expected 'action_mask' of"):
        env.reset()


def test_masks_in_infos_are_obeyed_in_rollouts():
    vector_env = make_vector_env(
        EnvironmentFactory("rollcast.actor.environments.action_mask:make", {"env_id": f"{__name__}:forgetful"}), 2
    )
    worker = worker_of(vector_env, 50)
    assert set(np.unique(worker.collect().substeps["a"].action)) == {0, 2}
    worker.close()


def test_returns_none_for_other_objects():
    assert adapt_pettingzoo(object()) is None


class Nameless(ParallelEnv):
    metadata = {"name": "nameless"}  # noqa: RUF012


class Named(AECEnv):
    metadata = {"name": "named"}  # noqa: RUF012

    def __init__(self, names):
        self.possible_agents = names

    def observation_space(self, agent):
        return spaces.Discrete(2)

    def action_space(self, agent):
        return spaces.Discrete(2 + agent.startswith("odd"))


def test_rejects_environment_without_possible_agents():
    with pytest.raises(ConfigurationError, match="has no possible_agents"):
        adapt_pettingzoo(Nameless())


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["a_0", "a_1"], {"a": 2}),
        (["0", "1"], {"0": 2}),
        (["team/red.1", "team/red.2"], {"team_red": 2}),
        (["x_1", "odd_x_1", "x_2"], {"x": 2, "odd_x": 1}),
        (["odd", "even", "more"], {"odd": 1, "even": 2}),
    ],
)
def test_a_key_is_the_first_agents_name_without_its_number(names, keys):
    env = adapt_pettingzoo(Named(names))
    assert {key: substep.n_agents for key, substep in env.spaces.items()} == keys
