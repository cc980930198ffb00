import functools
import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from mpe2 import simple_spread_v3

from actor.environments.failures import EnvironmentFailedError
from actor.environments.pettingzoo_env import adapt_pettingzoo
from actor.environments.structured import ActorId, Ended, SingleAgentEnv, StructuredEnv, Turn
from actor.policies.policy import make_policy
from actor.policies.random_policy import RandomPolicy
from actor.policies.torch_policy import TorchPolicy
from actor.rollout_worker import RolloutWorker
from actor.statistics.firing import FiresEvents
from actor.structured_rollout_worker import StructuredRolloutWorker
from actor.vector.structured import StructuredVectorEnv
from services.errors import ConfigurationError, NotReadyError
from services.policies import PolicySpec
from services.rollout_assembler import RolloutAssembler
from services.rollout_codec import RolloutEncoder
from services.rollout_service import parse_request
from services.spaces import SubstepSpaces
from tests.event_environments import StepEvents
from tests.unit.actor.structured_environments import (
    ACTORS,
    SPACES,
    Scripted,
    ScriptedEnv,
    alternating,
    expected_transitions,
)

CARTPOLE = {"0": SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (4,), np.float32), action=spaces.Discrete(2))}


def worker_of(*envs, n_steps=4, policy=None, **arguments):
    vector_env = StructuredVectorEnv([lambda env=env: env for env in envs])
    if policy is None:
        policy = RandomPolicy(SPACES, seed=0)
        policy.load(3, {})
    return StructuredRolloutWorker(
        vector_env, policy, n_steps, **{"actor_id": "a", "incarnation": 2, "env_seed": 0} | arguments
    )


def transitions_of(rollout, trajectory):
    """(observation, next observation, reward, terminated, truncated) of every valid row, as a learner reads them."""
    (columns,) = rollout.substeps.values()
    (path,) = columns.observation
    valid = np.ones(rollout.reward.shape, np.bool_) if rollout.valid is None else rollout.valid
    finals = {tuple(index): row for row, index in enumerate(rollout.final_index.tolist())}
    for t in range(rollout.n_steps):
        if not valid[t, trajectory]:
            continue
        seen = columns.observation[path][t, trajectory]
        if (t, trajectory) in finals:
            following = columns.final_observation[path][finals[t, trajectory]]
        elif t + 1 < rollout.n_steps:
            assert valid[t + 1, trajectory], "rows that are none come first"
            following = columns.observation[path][t + 1, trajectory]
        else:
            following = columns.last_observation[path][trajectory]
        yield (
            tuple(seen[:2].astype(int)),
            tuple(following[:2].astype(int)),
            float(rollout.reward[t, trajectory]),
            bool(rollout.terminated[t, trajectory]),
            bool(rollout.truncated[t, trajectory]),
        )


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
            rewards = {actor: float(draw(st.integers(-3, 3))) for actor in ACTORS if turn and draw(st.booleans())}
            acted -= ended.keys()
            acted |= set(acting)
            turns.append(Scripted(acting, rewards, ended))
            if not acting:
                break
        if turns[-1].acting:
            turns.append(Scripted((), {ACTORS[0]: 1.0}, {actor: draw(st.booleans()) for actor in sorted(acted)}))
        if turns[0].acting:
            episodes.append(turns)
    return episodes


@given(st.lists(scripts(), min_size=1, max_size=3), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
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
    """What is not complete at the end of a rollout is the first row of the next: nobody waits, nothing is padded."""
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


def test_rollouts_travel():
    worker = worker_of(ScriptedEnv([alternating(7)]), ScriptedEnv([alternating(2)]), n_steps=3)
    assembler = RolloutAssembler(SPACES, 3, 2, actor_id="a", incarnation=2)
    encoder = RolloutEncoder()
    for _ in range(10):
        rollout = worker.collect()
        (message,) = encoder.encode(rollout)
        received = assembler.add(*parse_request(message))
        assert received.n_env_steps == rollout.n_env_steps
        assert received.episodes == rollout.episodes


def test_one_forward_pass_for_all_that_act_in_a_substep():
    state = TorchPolicy(SPACES, PolicySpec()).state_arrays()
    policy = make_policy(SPACES, PolicySpec(), seed=0)
    policy.load(1, state)
    asked = []
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


def test_the_same_seeds_play_the_same():
    def played():
        worker = worker_of(ScriptedEnv([alternating(7)]), ScriptedEnv([alternating(3)]))
        return [worker.collect() for _ in range(6)]

    for mine, theirs in zip(played(), played(), strict=True):
        (columns,), (others,) = mine.substeps.values(), theirs.substeps.values()
        np.testing.assert_array_equal(columns.action, others.action)
        assert mine.env_seeds == theirs.env_seeds


def test_environments_are_seeded_once_and_agents_share_the_seed():
    envs = ScriptedEnv([alternating(3)]), ScriptedEnv([alternating(3)])
    worker = worker_of(*envs, n_steps=8, env_seed=(7, 8))
    rollout = worker.collect()
    assert [env.seeds[:2] for env in envs] == [[7, None], [8, None]]
    assert rollout.env_seeds == (7, 7, 8, 8)
    with pytest.raises(ConfigurationError, match="env_seed has 1 seeds; expected 2"):
        worker_of(*envs, env_seed=(7,))
    with pytest.raises(ConfigurationError, match="expected seeds of at least 0"):
        worker_of(*envs, env_seed=-1)


def test_a_rollout_may_be_interrupted_and_goes_on():
    worker = worker_of(ScriptedEnv([alternating(9)]), n_steps=4)
    answers = iter([False, False, True])
    assert worker.collect(lambda: next(answers)) is None
    assert next(transitions_of(worker.collect(), 0))[0] == (0, 0)


def test_what_cannot_be_right_is_refused():
    with pytest.raises(ConfigurationError, match="n_rollout_steps is 0"):
        worker_of(ScriptedEnv([alternating(3)]), n_steps=0)
    only_walkers = RandomPolicy({"walker": SPACES["walker"]}, seed=0)
    with pytest.raises(ConfigurationError, match=r"no substep 'guide', only \['walker'\]; expected all of"):
        worker_of(ScriptedEnv([alternating(3)]), policy=only_walkers)
    with pytest.raises(NotReadyError):
        worker_of(ScriptedEnv([alternating(3)]), policy=make_policy(SPACES, PolicySpec(), seed=0)).collect()


class SpoiltEnv(StructuredEnv):
    """Does in its third turn what it is told to do."""

    def __init__(self, spoil):
        self.spaces = SPACES
        self._spoil = spoil
        self.is_closed = False

    def reset(self, *, seed=None, options=None):
        self._turn = 0
        return Turn(observations={ACTORS[0]: np.zeros(3)})

    def step(self, actions):
        self._turn += 1
        return self._spoil() if self._turn == 2 else Turn(observations={ACTORS[0]: np.zeros(3)})

    def close(self):
        self.is_closed = True


MASKED = {
    "0": SubstepSpaces(
        observation=spaces.Dict(at=spaces.Discrete(9), action_mask=spaces.MultiBinary(2)), action=spaces.Discrete(2)
    )
}


class MaskedEnv(StructuredEnv):
    """Allows the action that the turn's number says, and in the fifth none."""

    ACTOR = ActorId("0")

    def __init__(self):
        self.spaces = MASKED

    def reset(self, *, seed=None, options=None):
        return self._now(0)

    def step(self, actions):
        assert actions == {self.ACTOR: self._turn % 2}
        return self._now(self._turn + 1)

    def _now(self, turn):
        self._turn = turn
        mask = np.eye(2, dtype=np.int8)[turn % 2] * (turn != 4)
        return Turn(observations={self.ACTOR: {"at": turn, "action_mask": mask}})


def test_action_masks_are_kept_to_and_must_allow_something():
    policy = RandomPolicy(MASKED, seed=0)
    policy.load(0, {})
    worker = worker_of(MaskedEnv(), n_steps=3, policy=policy)
    assert worker.collect().substeps["0"].action.ravel().tolist() == [0, 1, 0]
    with pytest.raises(EnvironmentFailedError, match=r"'action_mask' of ActorId.* allows no action: \[0, 0\]"):
        worker.collect()


def fail():
    raise RuntimeError("the wheels came off")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (fail, "environment 1 .seed 5. raised RuntimeError in step.*the wheels came off"),
        (lambda: Turn(observations={ActorId("pilot"): np.zeros(3)}), "ActorId.*pilot.*expected one of"),
        (lambda: Turn(observations={ActorId("walker", 2): np.zeros(3)}), "agent_index=2.*expected one of"),
        (lambda: Turn(observations={}), "nobody is to act any more.*walker.*has not ended"),
        (
            lambda: Turn(observations={ACTORS[0]: np.zeros(3)}, ended={ACTORS[0]: Ended(observation=np.zeros(3))}),
            "is to act, but its episode has ended",
        ),
        (lambda: Turn(observations={ACTORS[0]: np.zeros(4)}), r"float64\[4\]; expected float64\[3\]"),
        (lambda: Turn(observations={ACTORS[0]: np.zeros(3, complex)}), r"complex128\[3\]; expected float64\[3\]"),
        (lambda: Turn(observations={ACTORS[2]: {"heard": np.zeros(3)}}), "lacks 'seen'"),
    ],
)
def test_an_environment_that_misbehaves_is_named(spoil, match):
    worker = worker_of(ScriptedEnv([alternating(50)]), SpoiltEnv(spoil), n_steps=4, env_seed=(4, 5))
    with pytest.raises(EnvironmentFailedError, match=match) as caught:
        worker.collect()
    assert (caught.value.env_index, caught.value.env_seed) == (1, 5)
    worker.close()
    worker.close()


def test_a_gymnasium_environment_is_one_with_one_agent():
    """Its transitions are those that the worker for flat environments records."""
    policy = make_policy(CARTPOLE, PolicySpec(), seed=3)
    policy.load(1, TorchPolicy(CARTPOLE, PolicySpec()).state_arrays())
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
        assert found.episodes == rollout.episodes
        np.testing.assert_array_equal(found.reward, rollout.reward)
        np.testing.assert_array_equal(found.terminated, rollout.terminated)
        np.testing.assert_array_equal(found.final_index, rollout.final_index)
        mine, theirs = found.substeps["0"], rollout.substeps["0"]
        np.testing.assert_array_equal(mine.action, theirs.action)
        np.testing.assert_allclose(mine.log_prob, theirs.log_prob, rtol=1e-5)
        for name in ("observation", "last_observation", "final_observation"):
            np.testing.assert_array_equal(getattr(mine, name)[""], getattr(theirs, name)[""])


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


def test_wrapped_environments_are_listened_to_as_well():
    layers = list(SingleAgentEnv(gymnasium.make("CartPole-v1")).layers())
    assert type(layers[0]) is SingleAgentEnv
    assert layers[-1] is layers[1].unwrapped
    game = adapt_pettingzoo(simple_spread_v3.parallel_env())
    assert type(list(game.layers())[-1]).__name__ == "raw_env"


class FlakyGame(ScriptedEnv):
    """Raises in every `nth` step."""

    def __init__(self, episodes, nth):
        super().__init__(episodes)
        self._nth, self._n_asked = nth, 0

    def step(self, actions):
        self._n_asked += 1
        if self._n_asked % self._nth == 0:
            raise RuntimeError("the wheels came off")
        return super().step(actions)


@pytest.mark.parametrize(("nth", "n_steps"), [(3, 2), (4, 3), (4, 7), (5, 4), (7, 5)])
def test_an_episode_can_be_dropped_where_the_environment_raises(nth, n_steps, caplog):
    """What is known of it stays, cut before the actions whose consequences are not."""
    episode = alternating(1000)
    flaky, steady = FlakyGame([episode], nth), ScriptedEnv([alternating(5)])
    vector_env = StructuredVectorEnv([lambda: flaky, lambda: steady], drops_episodes=True)
    policy = RandomPolicy(SPACES, seed=0)
    policy.load(3, {})
    arguments = {"actor_id": "a", "incarnation": 2, "env_seed": (4, 5)}
    worker = StructuredRolloutWorker(vector_env, policy, n_steps, **arguments)
    found = {(index, actor): [] for index in range(2) for actor in ACTORS}
    for rollout in (worker.collect() for _ in range(10)):
        (key,) = rollout.substeps
        n_agents = SPACES[key].n_agents
        for trajectory in range(rollout.n_envs):
            actor = ActorId(key, trajectory % n_agents)
            transitions = list(transitions_of(rollout, trajectory))
            found[trajectory // n_agents, actor] += transitions
            for before, after in itertools.pairwise(transitions):
                is_last = after[0][0] > before[0][0]
                assert any(before[3:]) == is_last, "an episode that is followed by another has ended, or was cut"
        assert all(told.env_index // n_agents == 1 for told in rollout.episodes), "dropped episodes do not count"
    assert "environment 0 (seed 4) raised RuntimeError in step(): the wheels came off" in caplog.text
    # Each episode of the flaky one has nth - 1 steps, and what the agents saw before the last of them.
    whole = [*episode[:nth], Scripted((), {}, {})]
    for actor in ACTORS:
        known = expected_transitions([whole], 200)[actor]
        mine = found[0, actor]
        assert [transition[:3] for transition in mine] == [transition[:3] for transition in known[: len(mine)]]
        assert not any(terminated for *_, terminated, _ in mine)
        untouched = expected_transitions([alternating(5)], 200)[actor]
        assert found[1, actor] == untouched[: len(found[1, actor])]


def test_a_dropped_row_is_cut_before_it():
    flaky = FlakyGame([alternating(1000)], 4)
    vector_env = StructuredVectorEnv([lambda: flaky], drops_episodes=True)
    policy = RandomPolicy(SPACES, seed=0)
    policy.load(3, {})
    worker = StructuredRolloutWorker(vector_env, policy, 6, actor_id="a", incarnation=2, env_seed=(4,))
    rollout = worker.collect()
    assert list(rollout.substeps) == ["walker"]
    first = [transition for transition in transitions_of(rollout, 0) if transition[0][0] == 0]
    # It acted in turns 0 and 2; the fourth step raised after the second walker had seen turn 3.
    assert first == [((0, 0), (0, 2), 2.0, False, True)]
