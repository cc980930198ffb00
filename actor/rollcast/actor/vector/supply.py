"""Supplies an actor's environments. Their number comes from the actor's settings or from the learner."""

from typing import Self

from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S, EnvFactory
from rollcast.actor.vector.make import WORKER_INFO_KEYS, Environments, environment_spaces, make_vector_env
from rollcast.services.spaces.spaces import EnvironmentSpaces


class EnvironmentSupply:
    """The environments of an actor. If the learner decides their number, the supply first makes one, for its spaces.

    Only the acting thread uses the supply.

    Args:
        env_factory: Makes one environment.
        n_envs: The number of environments to step together; None: the learner decides.
        step_timeout_s: See `make_vector_env`.

    Raises:
        ConfigurationError: If the environments cannot be made. See `make_vector_env` for all other errors.
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

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of each environment."""
        return environment_spaces(self._vector_env)

    @property
    def n_envs(self) -> int | None:
        """The number of environments to step together; None: the learner decides."""
        return self._n_envs

    def take(self, n_envs: int) -> Environments:
        """Returns the vector of environments to step; the supply closes it.

        Args:
            n_envs: The agreed number of environments.

        Raises:
            ConfigurationError: If the environments cannot be made. See `make_vector_env` for all other errors.
        """
        if self._vector_env.num_envs != n_envs:
            # Close first, because an environment may hold a unique resource, such as a port.
            self._vector_env.close()
            self._vector_env = self._make(n_envs)
        return self._vector_env

    def close(self) -> None:
        """Closes the environments. Idempotent."""
        self._vector_env.close()

    def _make(self, n_envs: int) -> Environments:
        return make_vector_env(
            self._env_factory, n_envs, step_timeout_s=self._step_timeout_s, info_keys=WORKER_INFO_KEYS
        )
