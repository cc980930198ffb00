"""Steps a vector of gymnasium environments with a policy, and records rollouts."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rollcast.actor.environments.failures import environment_failure
from rollcast.actor.environments.recovering import DroppedEpisodesLog, failures_in
from rollcast.actor.policies.action_masks import action_mask_of
from rollcast.actor.statistics.wrapper import events_in
from rollcast.actor.vector.make import environment_spaces
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.env_seeds import seed_vector
from rollcast.actor.workers.recording import EpisodeTracker, RolloutColumns, step_schemas
from rollcast.actor.workers.recurrent_state import CarriedState
from rollcast.services.errors import ActorFailedError, ConfigurationError
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, flatten_observation, space_leaves


class RolloutWorker(Worker[VectorEnv]):
    """A worker that collects rollouts of T steps of B environments. Each rollout continues the previous rollout.

        worker = RolloutWorker(vector_env, policy, 32, actor_id="a", incarnation=1, env_seed=0)
        rollout = worker.collect()

    The worker supports both autoreset modes. SAME_STEP: the final observations are in the rollout's
    `final_observation`. NEXT_STEP: the row after the end of an episode holds the final observation and is not a
    transition, so the row's `valid` is False.

    Invariant: a rollout shares no memory with the worker, the policy or the environments. Only one thread calls a
    worker. After an exception, the worker can only be closed.

    The first `collect` resets the environments.

    Args:
        vector_env: The environments; `close` closes them.
        policy: Chooses the actions. The policy's owner loads new versions between rollouts.
        n_rollout_steps: T, at least 1.
        actor_id: Written into every rollout.
        incarnation: Written into every rollout.
        env_seed: The seed from which the environments' seeds are derived, at least 0; or one seed for each environment.
        first_sequence: The sequence number of the first rollout.
        deterministic: Take the policy's greedy actions instead of samples. The log-probabilities are still those of the
            policy.

    Raises:
        ConfigurationError: If `n_rollout_steps` or `env_seed` is wrong, or `vector_env` does not reset automatically.
        InvalidSpaceError: If a space is not supported, or an action mask has a wrong space.
    """

    def _prepare(self, env_seed: int | Sequence[int]) -> None:
        vector_env, n_envs = self._vector_env, self._vector_env.num_envs
        self._spaces = environment_spaces(vector_env)[FLAT_SUBSTEP]
        self._leaves = space_leaves(self._spaces.observation)
        self._single_path = next(iter(self._leaves)) if list(self._leaves) == [""] else None
        self._step_schemas = step_schemas(self._spaces)
        self._mask = action_mask_of(self._spaces)
        self._has_reset_rows = autoreset_mode(vector_env) is AutoresetMode.NEXT_STEP
        self._env_seeds, self._reset_seed = seed_vector(env_seed, vector_env)
        # Number of rows of observations in the current rollout.
        self._n_seen = 0
        self._carried = CarriedState(self._policy, n_envs, has_reset_rows=self._has_reset_rows)
        self._episodes = EpisodeTracker(n_envs, has_reset_rows=self._has_reset_rows)
        # The first observation of the next rollout, [B, ...] for every leaf; None before the first reset.
        self._observation: dict[str, NDArray[Any]] | None = None
        self._parameters = np.empty((0, 0, 0), dtype=np.float32)
        self._dropped_log = DroppedEpisodesLog()
        # Events of the current rollout.
        self._episode_events: dict[tuple[int, int], tuple[EventValue, ...]] = {}

    def collect(self, should_stop: Callable[[], bool] | None = None) -> Rollout | None:
        """Takes T steps and returns their rollout.

        Args:
            should_stop: Called before every step; True ends the rollout.

        Returns:
            The rollout. None if `should_stop` returned True; the steps so far are dropped.

        Raises:
            EnvironmentFailedError: If an environment raised. An exception in this process is the error's cause.
            ActorFailedError: If an action mask allows no action in a transition.
            EnvironmentLostError: If the process of an environment ended, or does not answer.
            ConfigurationError: If the vector environment omitted a final observation that its mode requires.
            NotReadyError: If the policy has no weights yet.
            InvalidTensorError: If an observation, a reward, an action or its log-probability is NaN, infinite, or
                outside its discrete space. The message has the environment, seed, column and index.
        """
        if self._observation is None:
            self._observation = self._reset()
        columns = RolloutColumns(
            self._leaves, self._step_schemas, self._n_steps, self._vector_env.num_envs, self._observation
        )
        self._carried.begin_rollout()
        try:
            n_played = self._play(columns, should_stop)
        except Exception:
            self._check_seen(columns)
            raise
        for path, kept in self._observation.items():
            np.copyto(kept, columns.observation[path][n_played])
        valid, episodes = self._episodes.finish(columns, n_played, self._episode_events)
        self._episode_events.clear()
        if n_played < self._n_steps:
            return None
        if not self._has_reset_rows:
            columns.check_final_observations()
        substep = columns.substep(
            # Once for all T * B actions, which costs a tenth of once a step.
            log_prob=self._policy.log_prob(self._parameters, columns.action, FLAT_SUBSTEP),
            initial_state=self._carried.initial_state(valid),
            previous_observation=self._carried.previous_observation(columns.observation, valid),
        )
        if self._mask is not None:
            self._mask.check_transitions(substep.observation, valid)
        sequence = self._sequence
        self._sequence += 1
        rollout = Rollout(
            actor_id=self._actor_id,
            incarnation=self._incarnation,
            sequence=sequence,
            policy_version=self._policy.version,
            substeps={FLAT_SUBSTEP: substep},
            reward=columns.reward,
            terminated=columns.terminated,
            truncated=columns.truncated,
            valid=valid,
            final_index=columns.final_indices(),
            episodes=episodes,
            env_seeds=self._env_seeds,
            events=self._policy_events.end_episode() if self._policy_events is not None else (),
        )
        self._check(rollout)
        return rollout

    def _check_seen(self, columns: RolloutColumns) -> None:
        """Checks the observations before an error, because an invalid one may be its cause."""
        n_seen = self._n_seen
        self._check.check_observations(
            {path: column[:n_seen] for path, column in columns.observation.items()},
            key=FLAT_SUBSTEP,
            what=f"actor {self._actor_id!r}, rollout {self._sequence}",
            env_seeds=self._env_seeds,
        )

    def _reset(self) -> dict[str, NDArray[Any]]:
        try:
            observation, _ = self._vector_env.reset(seed=self._reset_seed)  # type: ignore[arg-type]
        except ActorFailedError:
            raise
        except (Exception, SystemExit) as error:
            raise environment_failure(error, self._vector_env, doing="reset", env_seeds=self._env_seeds) from error
        leaves = flatten_observation(self._spaces.observation, observation)
        return {path: np.array(leaves[path], dtype=leaf.dtype) for path, leaf in self._leaves.items()}

    def _play(self, columns: RolloutColumns, should_stop: Callable[[], bool] | None) -> int:
        """Fills the columns; returns the number of steps."""
        act, step, executed = self._policy.act, self._vector_env.step, self._executed[FLAT_SUBSTEP]
        if self._deterministic:
            act = functools.partial(act, deterministic=True)
        state, remembers, see = self._carried.state, not self._carried.is_empty, self._carried.see
        for t in range(self._n_steps):
            self._n_seen = t + 1
            if should_stop is not None and should_stop():
                return t
            seen = see({path: column[t] for path, column in columns.observation.items()})
            action, parameters = act(seen, state=state)
            if self._parameters.shape[2] != parameters.shape[1] or len(self._parameters) == 0:
                self._parameters = np.empty((self._n_steps, *parameters.shape), dtype=np.float32)
            if self._policy_events is not None:
                self._policy_events.end_step()
            self._parameters[t] = parameters
            columns.action[t] = action
            try:
                observation, reward, terminated, truncated, infos = step(executed(action))
            except ActorFailedError:
                raise
            except (Exception, SystemExit) as error:
                raise environment_failure(error, self._vector_env, doing="step", env_seeds=self._env_seeds) from error
            columns.reward[t] = reward
            columns.terminated[t] = terminated
            columns.truncated[t] = truncated
            # Copied now, because the environments may overwrite their observation in the next step.
            if self._single_path is not None:
                columns.observation[self._single_path][t + 1] = observation
            else:
                for path, leaf in flatten_observation(self._spaces.observation, observation).items():
                    columns.observation[path][t + 1] = leaf
            dropped = self._take_infos(t, infos, columns) if infos else ()
            if remembers:
                self._carried.end_step(columns.terminated[t] | columns.truncated[t], dropped)
        return self._n_steps

    def _take_infos(self, t: int, infos: dict[str, Any], columns: RolloutColumns) -> list[int]:
        """Records the contents of a step's infos; returns the environments that raised in the step."""
        dropped = []
        for b, report in failures_in(infos):
            self._dropped_log.note(report, env_index=b, env_seed=self._env_seeds[b])
            self.dropped_episodes += 1
            columns.drop(t, b)
            dropped.append(b)
        if "final_obs" in infos and not self._has_reset_rows:
            columns.record_final_observations(t, infos["final_obs"], self._spaces.observation)
        for b, values in events_in(infos, are_final=not self._has_reset_rows):
            self._episode_events[t, b] = values
        return dropped


def autoreset_mode(vector_env: VectorEnv) -> AutoresetMode:
    """Returns a vector's autoreset mode; raises `ConfigurationError` if the vector does not reset automatically."""
    mode = vector_env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode) or mode is AutoresetMode.DISABLED:
        raise ConfigurationError(
            f"the vector environment {vector_env} has metadata['autoreset_mode'] {mode}; expected "
            f"{AutoresetMode.NEXT_STEP} or {AutoresetMode.SAME_STEP}, because rollouts continue after the end of an "
            "episode; make the vector with one of these modes, or use vectorization 'sync'"
        )
    return mode
