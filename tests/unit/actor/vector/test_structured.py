import itertools
import sys

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.services.errors import SpacesMismatchError
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.rollouts import transitions_of
from tests.unit.actor.structured_environments import (
    ACTORS,
    SPACES,
    Scripted,
    ScriptedEnv,
    alternating,
    expected_transitions,
    worker_of,
)
from tests.unit.actor.workers import flat_workers


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


class MaskedInInfosEnv(MaskedEnv):
    """Has its masks in the infos, too, and not in its observations if it is told so."""

    def __init__(self, is_seen):
        super().__init__()
        self._is_seen = is_seen
        if not is_seen:
            self.spaces = {"0": SubstepSpaces(observation=spaces.Discrete(9), action=spaces.Discrete(2))}

    def reset(self, *, seed=None, options=None):
        seen = super().reset(seed=seed).observations[self.ACTOR]
        infos = {self.ACTOR: {"action_mask": seen["action_mask"]}}
        return Turn(observations={self.ACTOR: seen if self._is_seen else seen["at"]}, infos=infos)


@pytest.mark.parametrize("is_seen", [True, False])
def test_masks_that_only_infos_have_are_a_warning(is_seen, caplog):
    vector_env = StructuredVectorEnv([lambda: MaskedInInfosEnv(is_seen)] * 2)
    for index in (0, 1, 0):
        vector_env.reset(index)
    assert ["environments.action_mask:make" in line for line in caplog.messages] == [True] * (not is_seen)


def test_action_masks_are_kept_to_and_must_allow_something():
    worker = worker_of(MaskedEnv(), n_steps=3, policy=RandomPolicy(MASKED, seed=0))
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
        (lambda: Turn(observations={}), "no agent acts any more.*walker.*has not ended"),
        (
            lambda: Turn(observations={ACTORS[0]: np.zeros(3)}, ended={ACTORS[0]: Ended(observation=np.zeros(3))}),
            "has to act, but its episode has ended",
        ),
        (lambda: Turn(observations={ACTORS[0]: np.zeros(4)}), r"float64\[4\]; expected float64\[3\]"),
        (lambda: Turn(observations={ACTORS[0]: np.zeros(3, complex)}), r"complex128\[3\]; expected float64\[3\]"),
        (lambda: Turn(observations={ACTORS[2]: {"heard": np.zeros(3)}}), "lacks 'seen'"),
        (
            lambda: None,
            r"environment 1 .seed 5. returned a wrong value from step\(\): it is a NoneType; expected a Turn",
        ),
        (lambda: sys.exit(), r"environment 1 .seed 5. raised SystemExit in step\(\): sys.exit\(\) was called"),
        (lambda: Turn(observations={ACTORS[0]: np.full(3, np.nan)}), r"holds nan, element \[0\]; expected finite"),
        (
            lambda: Turn(observations={ACTORS[0]: np.zeros(3)}, rewards={ACTORS[0]: "1"}),
            r"environment 1 .seed 5. returned a wrong value from step\(\): the reward is '1'; expected a number",
        ),
    ],
)
def test_an_environment_that_misbehaves_is_named(spoil, match):
    worker = worker_of(ScriptedEnv([alternating(50)]), SpoiltEnv(spoil), n_steps=4, env_seed=(4, 5))
    with pytest.raises(EnvironmentFailedError, match=match) as caught:
        worker.collect()
    assert (caught.value.env_index, caught.value.env_seed) == (1, 5)
    worker.close()
    worker.close()


@pytest.mark.parametrize(
    ("later", "match"),
    [
        (Scripted(ACTORS[:2]), "has to act, but its episode has ended"),
        (Scripted(ACTORS[1:2], rewards={ACTORS[0]: 1.0}), "gets a reward, but its episode has ended"),
        (Scripted(ACTORS[1:2], rewards={ACTORS[0]: np.zeros(2)}), r"the reward is array.*; expected a number"),
    ],
    ids=["acts", "gets a reward", "gets two rewards"],
)
def test_an_agent_that_has_ended_stays_so_until_the_reset(later, match):
    ended = Scripted(ACTORS[1:2], ended={ACTORS[0]: False})
    worker = worker_of(ScriptedEnv([[Scripted(ACTORS[:2]), ended, Scripted(ACTORS[1:2]), later]]), n_steps=8)
    with pytest.raises(EnvironmentFailedError, match=match):
        worker.collect()


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
    """Its known part stays, cut before the first action without consequences."""
    episode = alternating(1000)
    flaky, steady = FlakyGame([episode], nth), ScriptedEnv([alternating(5)])
    vector_env = StructuredVectorEnv([lambda: flaky, lambda: steady], drops_episodes=True)
    worker = flat_workers.worker_of(vector_env, n_steps, env_seed=(4, 5))
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
    assert worker.dropped_episodes > 0
    # Each episode of the flaky one has nth - 1 steps, and what the agents saw before the last of them.
    whole = [*episode[:nth], Scripted((), {}, {})]
    for actor in ACTORS:
        known = expected_transitions([whole], 200)[actor]
        mine = found[0, actor]
        assert [transition[:3] for transition in mine] == [transition[:3] for transition in known[: len(mine)]]
        assert not any(terminated for *_, terminated, _ in mine)
        untouched = expected_transitions([alternating(5)], 200)[actor]
        assert found[1, actor] == untouched[: len(found[1, actor])]


@pytest.mark.parametrize("is_refused", [False, True], ids=["closed", "refused"])
def test_closing_goes_on_if_an_environment_cannot_be_closed(is_refused, caplog):
    envs = [SpoiltEnv(fail), SpoiltEnv(fail), SpoiltEnv(fail)]
    closes = [env.close for env in envs]
    envs[1].close = lambda: (closes[1](), fail())
    if is_refused:
        envs[2].spaces = MASKED
        with pytest.raises(SpacesMismatchError):
            StructuredVectorEnv([lambda env=env: env for env in envs])
    else:
        vector_env = StructuredVectorEnv([lambda env=env: env for env in envs])
        vector_env.close(), vector_env.close()
    assert [env.is_closed for env in envs] == [True] * 3
    assert "environment 1 raised RuntimeError in close(): the wheels came off" in caplog.text


def test_a_turn_that_was_dropped_has_no_rewards():
    vector_env = StructuredVectorEnv([lambda: FlakyGame([alternating(50)], 3)], drops_episodes=True)
    turn = vector_env.reset(0)
    for n_rewarded in (1, 1, 0):
        turn = vector_env.step(0, dict.fromkeys(turn.observations, 0))
        assert np.count_nonzero(vector_env.get_actor_rewards()) == n_rewarded
    assert turn.is_dropped
