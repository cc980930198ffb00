"""The environments of an actor, which may leave to its learner how many they are."""

from types import TracebackType
from typing import Self

from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S, EnvFactory
from rollcast.actor.vector.make import Environments, environment_spaces, make_vector_env
from rollcast.services.spaces.spaces import EnvironmentSpaces


class EnvironmentSupply:
    """An actor's environments: as many as it was told to step; or one to show, and then as many as are agreed.

    Used from the acting thread only.

    Args:
        env_factory: Makes one environment.
        n_envs: How many to step at once; None: as many as the learner wants.
        step_timeout_s: As of `make_vector_env`.

    Raises:
        ConfigurationError: They cannot be made; see `make_vector_env` for the other errors.
    """

    def __init__(
        self, env_factory: EnvFactory, n_envs: int | None, *, step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
    ) -> None:
        self._env_factory = env_factory
        self._n_envs = n_envs
        self._step_timeout_s = step_timeout_s
        self._vector_env = self._make(1 if n_envs is None else n_envs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    @property
    def spaces(self) -> EnvironmentSpaces:
        """What every one of them looks like."""
        return environment_spaces(self._vector_env)

    @property
    def n_envs(self) -> int | None:
        """How many the actor was told to step; None: as many as the learner wants."""
        return self._n_envs

    def take(self, n_envs: int) -> Environments:
        """The environments to step; they stay the supply's, which closes them.

        Args:
            n_envs: How many were agreed.

        Raises:
            ConfigurationError: They cannot be made; see `make_vector_env` for the other errors.
        """
        if self._vector_env.num_envs != n_envs:
            # first: an environment may hold what there is only one of, such as a port
            self._vector_env.close()
            self._vector_env = self._make(n_envs)
        return self._vector_env

    def close(self) -> None:
        """Closes the environments. Idempotent."""
        self._vector_env.close()

    def _make(self, n_envs: int) -> Environments:
        return make_vector_env(self._env_factory, n_envs, step_timeout_s=self._step_timeout_s)
