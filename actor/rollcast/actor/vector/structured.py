"""Steps several structured environments in one process, each in its own turns, and checks the turns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rollcast.actor.environments.failures import EnvironmentFailedError, FailureReport
from rollcast.actor.environments.recovering import MAX_FAILURES_IN_A_ROW, DroppedEpisodesLog
from rollcast.actor.environments.returned_values import InvalidValueError, checked_leaves, checked_reward
from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.actor.policies.action_masks import ACTION_MASK, action_mask_of
from rollcast.actor.statistics.firing import FiresEvents, listen_to
from rollcast.actor.vector.environment_group import SET_PROGRESS, close_all, warn_of_ignored_mask
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import (
    EnvironmentSpaces,
    NestedObservation,
    Observation,
    check_action_space_supported,
    check_spaces_match,
    space_leaves,
)


class StructuredVectorEnv:
    """A vector of structured environments. The caller steps an environment as soon as its turn has all actions.

    This class is not a `gymnasium.vector.VectorEnv`, because different agents act in its environments at the same time.
    The vector checks every turn: its agents exist and have not ended, and observations fit their spaces. At the end of
    the episode, all agents must have ended. In the returned turns, an observation is a dict from leaf path to array.

    Args:
        env_factories: Each makes one environment.
        drops_episodes: See the attribute.

    Attributes:
        drops_episodes: True: an exception in `step` ends the episode instead of raising. The turn then has no
            observations, and `is_dropped` is True.

    Raises:
        ConfigurationError: If there is no factory, or an environment is of another kind.
        InvalidSpaceError: If a space is not supported, or an action mask has a wrong space.
        SpacesMismatchError: If two environments have different spaces.
    """

    def __init__(
        self,
        env_factories: Sequence[Callable[[], StructuredEnv | gymnasium.Env[Any, Any]]],
        *,
        drops_episodes: bool = False,
    ) -> None:
        if not env_factories:
            raise ConfigurationError("there are no env_factories; expected at least one; give one for each environment")
        self.drops_episodes = drops_episodes
        self._dropped_log = DroppedEpisodesLog()
        self._envs: list[StructuredEnv] = []
        try:
            for index, env_factory in enumerate(env_factories):
                self._envs.append(_structured(env_factory(), index))
                self._check_spaces(index)
        except BaseException:
            self.close()
            raise
        self.spaces: EnvironmentSpaces = self._envs[0].spaces
        self.actors = tuple(
            ActorId(key, agent) for key, substep in self.spaces.items() for agent in range(substep.n_agents)
        )
        self._numbers = {actor: number for number, actor in enumerate(self.actors)}
        self._masks = {key: action_mask_of(substep) for key, substep in self.spaces.items()}
        self._leaves = {key: space_leaves(substep.observation) for key, substep in self.spaces.items()}
        self._has_looked_for_mask = False
        self._seeds: list[int | None] = [None] * self.num_envs
        self._n_failures = [0] * self.num_envs  # in a row
        # The agents that have acted in this episode and have not ended; those that have ended.
        self._alive: list[set[ActorId]] = [set() for _ in self._envs]
        self._ended: list[set[ActorId]] = [set() for _ in self._envs]
        self._aggregators = [
            listen_to([layer for layer in reversed(list(env.layers())) if isinstance(layer, FiresEvents)])
            for env in self._envs
        ]
        self._actor_rewards = np.zeros((len(self.actors), self.num_envs), np.float32)

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return len(self._envs)

    def reset(self, index: int, *, seed: int | None = None) -> Turn:
        """Begins an episode in one environment.

        Args:
            index: The index of the environment.
            seed: The environment's seed; None: the environment's random generators continue.

        Raises:
            EnvironmentFailedError: If the environment raised, or returned a wrong turn.
        """
        if seed is not None:
            self._seeds[index] = seed
        self._alive[index], self._ended[index] = set(), set()
        aggregator = self._aggregators[index]
        if aggregator is not None:
            aggregator.clear()
        turn = self._asked(index, "reset", lambda: self._envs[index].reset(seed=seed))
        if not self._has_looked_for_mask and turn.observations:
            self._has_looked_for_mask = True
            actor = next(iter(turn.observations))
            warn_of_ignored_mask(turn.infos.get(actor, {}), self.spaces[actor.substep_key].observation)
        return turn

    def step(self, index: int, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the actions of a turn in one environment.

        Args:
            index: The index of the environment.
            actions: The action of every agent in the last turn's `observations`.

        Raises:
            EnvironmentFailedError: If the environment raised, or returned a wrong turn.
        """
        self._alive[index].update(actions)
        return self._asked(index, "step", lambda: self._envs[index].step(actions))

    def set_progress(self, progress: float) -> None:
        """Calls `set_progress(progress)` of each environment's outermost layer that has this method.

        Args:
            progress: The progress of training, in [0, 1].

        Raises:
            EnvironmentFailedError: If an environment raised.
        """
        for index, env in enumerate(self._envs):
            method = next((found for layer in env.layers() if (found := getattr(layer, SET_PROGRESS, None))), None)
            if method is None:
                continue
            try:
                method(progress)
            except (Exception, SystemExit) as error:
                report = FailureReport.of(error, doing=SET_PROGRESS, env_index=index, env_seed=self._seeds[index])
                raise EnvironmentFailedError(report) from error

    def get_actor_rewards(self) -> NDArray[np.float32]:
        """Returns every agent's rewards in the last turn: `[n_actors, n_envs]`, in the order of `actors`."""
        return self._actor_rewards.copy()

    def close(self) -> None:
        """Closes every environment, and logs their exceptions. Idempotent."""
        envs, self._envs = self._envs, []
        close_all(envs)

    def _asked(self, index: int, doing: str, ask: Callable[[], Turn]) -> Turn:
        try:
            turn = ask()
            self._check(index, turn)
            turn = Turn(
                observations={actor: self._seen(actor, seen) for actor, seen in turn.observations.items()},
                rewards={actor: checked_reward(reward) for actor, reward in turn.rewards.items()},
                ended={
                    actor: Ended(observation=self._taken_apart(actor, end.observation), truncated=end.truncated)
                    for actor, end in turn.ended.items()
                },
                infos=turn.infos,
                events=self._end_step(index, is_last=not turn.observations),
            )
        except (Exception, SystemExit) as error:
            seed = self._seeds[index]
            report = FailureReport.of(error, doing=doing, env_index=index, env_seed=seed)
            self._n_failures[index] += 1
            if doing == "reset" or not self.drops_episodes or self._n_failures[index] == MAX_FAILURES_IN_A_ROW:
                raise EnvironmentFailedError(report) from error
            self._dropped_log.note(report, env_index=index, env_seed=seed)
            self._actor_rewards[:, index] = 0.0
            return Turn(observations={}, is_dropped=True)
        if doing == "step":
            self._n_failures[index] = 0
        self._actor_rewards[:, index] = 0.0
        for actor, reward in turn.rewards.items():
            self._actor_rewards[self._numbers[actor], index] = reward
        return turn

    def _end_step(self, index: int, *, is_last: bool) -> tuple[EventValue, ...]:
        """Ends a step for an environment's events; returns the statistics of an ended episode."""
        aggregator = self._aggregators[index]
        if aggregator is None:
            return ()
        if is_last:
            return aggregator.end_episode()
        aggregator.end_step()
        return ()

    def _check(self, index: int, turn: Turn) -> None:
        """Raises if a turn breaks the rules of structured environments."""
        if not isinstance(turn, Turn):
            raise InvalidValueError(f"it is a {type(turn).__name__}; expected a Turn; return a Turn")
        for actor in (*turn.observations, *turn.rewards, *turn.ended):
            if actor not in self._numbers:
                raise InvalidValueError(
                    f"the turn has {actor}; expected one of {list(self.actors)[:16]}, the agents of the environment's "
                    "spaces; correct the environment, or n_agents of its spaces"
                )
        ended = self._ended[index]
        if late := sorted(actor for actor in ended & turn.rewards.keys() if checked_reward(turn.rewards[actor])):
            raise InvalidValueError(
                f"{late[0]} gets a reward, but its episode has ended; expected its last reward in the turn that ends "
                "the episode; remove this agent from rewards"
            )
        ended.update(turn.ended)
        if again := sorted(ended & turn.observations.keys()):
            raise InvalidValueError(
                f"{again[0]} has to act, but its episode has ended; expected no action before a reset; remove this "
                "agent from observations"
            )
        self._alive[index] -= turn.ended.keys()
        if not turn.observations and (left := sorted(self._alive[index])):
            raise InvalidValueError(
                f"no agent acts any more, but the episode of {left[:16]} has not ended; expected every agent "
                "that has acted in ended; end their episodes with their last observations"
            )

    def _seen(self, actor: ActorId, observation: NestedObservation) -> Observation:
        """Returns the leaves of an agent's observation; raises if its mask allows no action."""
        leaves, mask = self._taken_apart(actor, observation), self._masks[actor.substep_key]
        if mask is not None and any(mask.allows_no_action(leaves)):
            raise InvalidValueError(
                f"the {ACTION_MASK!r} of {actor} allows no action: {leaves[ACTION_MASK].tolist()}; expected at least "
                "one allowed action while it has to act; end its episode, or allow an action without an effect"
            )
        return leaves

    def _taken_apart(self, actor: ActorId, observation: NestedObservation) -> Observation:
        key = actor.substep_key
        what = f"the observation of {actor}"
        return checked_leaves(self.spaces[key].observation, self._leaves[key], observation, what)

    def _check_spaces(self, index: int) -> None:
        spaces = self._envs[index].spaces
        for key, substep in spaces.items():
            space_leaves(substep.observation)
            check_action_space_supported(substep.action, where=f"substep {key!r}")
        check_spaces_match(
            self._envs[0].spaces, spaces, expected_side="environment 0", offered_side=f"environment {index}"
        )


def _structured(env: StructuredEnv | gymnasium.Env[Any, Any], index: int) -> StructuredEnv:
    if isinstance(env, StructuredEnv):
        return env
    env.close()
    raise ConfigurationError(
        f"environment {index} is a {type(env).__name__}; expected a StructuredEnv; make the factories return "
        "such environments, or wrap them in SingleAgentEnv"
    )
