"""The base of all rollout workers: arguments, seeds, checks, and the events of the policy."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.policies.base import Policy
from rollcast.actor.statistics.firing import listen_to
from rollcast.actor.vector.make import Environments, environment_spaces, set_progress
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.value_check import ValueCheck

_Environments = TypeVar("_Environments", bound=Environments)


class Worker(ABC, Generic[_Environments]):
    """A rollout worker. `RolloutWorker` documents the arguments and the invariant.

    Attributes:
        dropped_episodes: The number of episodes that were dropped because their environment raised or left.
        least_version: The oldest policy version that the learner accepts in the next rollout. The learner would refuse
            a rollout whose first rows use an older version.
    """

    _env_seeds: tuple[int, ...]

    def __init__(
        self,
        vector_env: _Environments,
        policy: Policy,
        n_rollout_steps: int,
        *,
        actor_id: str,
        incarnation: int,
        env_seed: int | Sequence[int],
        first_sequence: int = 1,
        deterministic: bool = False,
    ) -> None:
        if n_rollout_steps < 1:
            raise ConfigurationError(f"n_rollout_steps is {n_rollout_steps}; expected at least 1; raise it")
        self._vector_env = vector_env
        self._policy = policy
        self._n_steps = n_rollout_steps
        self._actor_id = actor_id
        self._incarnation = incarnation
        self._sequence = first_sequence
        self._deterministic = deterministic
        self.dropped_episodes = 0
        self.least_version = 0
        spaces = environment_spaces(vector_env)
        self._executed = {key: ExecutedActions(substep.action) for key, substep in spaces.items()}
        self._check = ValueCheck(spaces)
        self._prepare(env_seed)
        self._policy_events = listen_to(policy.event_sources())

    @property
    def env_seeds(self) -> tuple[int, ...]:
        """The first seed of each environment."""
        return self._env_seeds

    @abstractmethod
    def _prepare(self, env_seed: int | Sequence[int]) -> None:
        """Derives the seeds of the environments, and allocates the worker's buffers."""

    @abstractmethod
    def collect(self, should_stop: Callable[[], bool] | None = None) -> Rollout | None:
        """Returns the next rollout; None if `should_stop` returned True."""

    def set_progress(self, progress: float) -> None:
        """Passes the progress of training to environments that accept it. Call this between rollouts.

        Args:
            progress: The progress, in [0, 1].

        Raises:
            EnvironmentFailedError: An environment raised.
        """
        set_progress(self._vector_env, progress)

    def close(self) -> None:
        """Closes the environments. Idempotent."""
        self._vector_env.close()
