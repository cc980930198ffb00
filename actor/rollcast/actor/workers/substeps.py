"""The base of workers whose agents act at different times: one recorder and one rollout for each substep."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.environments.structured import ActorId, Executed, Turn
from rollcast.actor.vector.make import SubstepEnvironments
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.env_seeds import seed_each
from rollcast.actor.workers.substep_recorder import Recorded, Rows, SubstepRecorder, index_array
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.rollouts import Rollout

_Environments = TypeVar("_Environments", bound=SubstepEnvironments)


class SubstepWorker(Worker[_Environments]):
    """A worker that records agents when they act, and collects rollouts of T rows, one for each substep.

    A rollout has T rows of `num_envs * n_agents` trajectories. Trajectory `environment * n_agents + agent` belongs to
    one agent. A row is an action of this agent, with the agent's rewards until its next action. An environment waits
    when all its agents have T rows, or one agent has no space for another row. If an agent has fewer rows, rows that
    are not valid precede them.

    Invariant: at most the first `_n_ahead` rows of a trajectory have an older policy version than all other rows. The
    agent had begun these rows when the previous rollout ended. `Rollout.policy_versions` has the versions of all rows
    if some differ from the rollout's version.
    """

    @property
    def _n_ahead(self) -> int:
        """The number of rows of the next rollout that an agent may begin before this one ends."""
        return 1

    def _prepare(self, env_seed: int | Sequence[int]) -> None:
        spaces, known, n_envs = self._vector_env.spaces, self._policy.spaces, self._vector_env.num_envs
        if lacking := sorted(spaces.keys() - known.keys()):
            raise ConfigurationError(
                f"the policy has no substep {', '.join(map(repr, lacking))}, only {list(known)}; expected all of "
                f"{list(spaces)}; make the policy with the environment's spaces"
            )
        self._n_agents = {key: substep.n_agents for key, substep in spaces.items()}
        self._recorders = {
            key: SubstepRecorder(
                substep,
                self._n_steps,
                n_envs * substep.n_agents,
                n_ahead=self._n_ahead,
                initial_state=self._policy.initial_state(n_envs * substep.n_agents),
                stacks=self._policy.frame_stacks(n_envs * substep.n_agents),
            )
            for key, substep in spaces.items()
        }
        self._env_seeds = seed_each(env_seed, n_envs)
        self._finished: deque[Rollout] = deque()

    def collect(self, should_stop: Callable[[], bool] | None = None) -> Rollout | None:
        """Returns the next rollout. Steps the environments first, if no finished rollout is left.

        Args:
            should_stop: Called before every turn; True ends the steps.

        Returns:
            The rollout of one substep; None if `should_stop` returned True.

        Raises:
            EnvironmentFailedError: If an environment raised, or returned a wrong turn; the exception is its cause.
            NotReadyError: If the policy has no weights yet.
            InvalidTensorError: If a value is NaN or infinite. The message has environment, seed, column and index.
        """
        while not self._finished:
            if not self._play(should_stop):
                return None
            self._finish()
        return self._finished.popleft()

    @abstractmethod
    def _play(self, should_stop: Callable[[], bool] | None) -> bool:
        """Steps the environments until the rollout ends; returns False if it should not be finished."""

    def _has_room(self, index: int, turn: Turn) -> bool:
        """Returns whether each agent that acts in a turn has space for another row."""
        for actor in turn.observations:
            if not self._recorders[actor.substep_key].has_room(self._trajectory(index, actor)):
                return False
        return True

    def _has_all_rows(self, index: int) -> bool:
        """Returns whether all agents of an environment have T complete rows."""
        for key, recorder in self._recorders.items():
            n_agents = self._n_agents[key]
            if not recorder.has_all_rows(index * n_agents, (index + 1) * n_agents):
                return False
        return True

    def _act(self, turns: Mapping[int, Turn]) -> dict[int, dict[ActorId, Any]]:
        """Chooses the actions for turns, by environment, with one call of the policy for each substep."""
        acting: dict[str, list[tuple[int, ActorId]]] = {}
        for index, turn in turns.items():
            for actor in turn.observations:
                acting.setdefault(actor.substep_key, []).append((index, actor))
        actions: dict[int, dict[ActorId, Any]] = {index: {} for index in turns}
        for key, agents in acting.items():
            trajectories = index_array([self._trajectory(index, actor) for index, actor in agents])
            chosen = self._choose(key, trajectories)
            for (index, actor), action in zip(agents, chosen, strict=True):
                actions[index][actor] = action
        return actions

    def _choose(self, key: str, trajectories: Rows) -> NDArray[Any]:
        recorder, policy = self._recorders[key], self._policy
        state = recorder.state_of(trajectories)
        action, parameters = policy.act(
            recorder.seen(trajectories), deterministic=self._deterministic, substep_key=key, state=state
        )
        log_prob = policy.log_prob(parameters, action, key)
        recorder.act(trajectories, action, log_prob, state, policy_version=policy.version)
        return self._executed[key](action)

    def _record(self, index: int, turn: Turn) -> None:
        for actor, executed in turn.executed.items():
            self._override(self._recorders[actor.substep_key], self._trajectory(index, actor), actor, executed)
        for actor, reward in turn.rewards.items():
            self._recorders[actor.substep_key].earn(self._trajectory(index, actor), float(reward))
        # The environment's events are recorded once, with the episode of one of its agents.
        events = turn.events
        for actor, ended in turn.ended.items():
            recorder, trajectory = self._recorders[actor.substep_key], self._trajectory(index, actor)
            if recorder.end(trajectory, ended.observation, truncated=ended.truncated, events=events):
                events = ()

    def _override(self, recorder: SubstepRecorder, trajectory: int, actor: ActorId, executed: Executed) -> None:
        """Records an action that was executed in place of the policy's action.

        If both are equal, and `executed` names no other chooser, the row keeps the policy's action and log-probability.
        """
        chosen = recorder.last_action(trajectory)
        if chosen is None:
            return
        clipped = self._executed[actor.substep_key]
        sent = clipped(chosen)
        action = sent if executed.action is None else clipped(executed.action)
        if executed.chosen_by or not np.array_equal(action, sent):
            recorder.override(trajectory, action)

    def _drop(self, index: int) -> None:
        for key, recorder in self._recorders.items():
            for trajectory in range(index * self._n_agents[key], (index + 1) * self._n_agents[key]):
                recorder.drop(trajectory)

    def _begin(self, index: int, turn: Turn) -> None:
        for key, recorder in self._recorders.items():
            recorder.begin(index * self._n_agents[key], (index + 1) * self._n_agents[key])
        self._see(index, turn)

    def _see(self, index: int, turn: Turn) -> None:
        for actor, leaves in turn.observations.items():
            self._recorders[actor.substep_key].see(self._trajectory(index, actor), leaves)

    def _trajectory(self, index: int, actor: ActorId) -> int:
        return index * self._n_agents[actor.substep_key] + actor.agent_index

    def _version_of(self, recorded: Recorded) -> int:
        """Returns the policy version of a rollout."""
        del recorded
        return self._policy.version

    def _finish(self) -> None:
        events = self._policy_events.end_episode() if self._policy_events is not None else ()
        for key, recorder in self._recorders.items():
            recorded = recorder.take()
            if recorded.is_empty:
                continue
            version, valid = self._version_of(recorded), recorded.valid
            versions = recorded.policy_versions
            versions = versions if valid is None else np.where(valid, versions, version)
            rollout = Rollout(
                actor_id=self._actor_id,
                incarnation=self._incarnation,
                sequence=self._sequence,
                policy_version=version,
                substeps={key: recorded.columns},
                reward=recorded.reward,
                terminated=recorded.terminated,
                truncated=recorded.truncated,
                valid=recorded.valid,
                final_index=recorded.final_index,
                episodes=recorded.episodes,
                env_seeds=tuple(np.repeat(self._env_seeds, self._n_agents[key]).tolist()),
                events=events,
                policy_versions=None if (versions == version).all() else versions,
            )
            self._check(rollout)
            self._finished.append(rollout)
            events = ()
            self._sequence += 1
