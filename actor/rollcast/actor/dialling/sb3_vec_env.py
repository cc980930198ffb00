"""Wraps `RemoteVecEnv` as Stable-Baselines3's `VecEnv`. Only this module imports Stable-Baselines3."""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv

from rollcast.services.errors import ConfigurationError


class Sb3VecEnv(VecEnv):
    """Environments that dial in, for Stable-Baselines3. To log returns, wrap this vector in `VecMonitor`.

    As in Stable-Baselines3, a step that ends an episode returns the first observation of the next episode. The info
    then has `terminal_observation` and `TimeLimit.truncated`.

    Args:
        remote: The environments, reset in the step in which an episode ends.
    """

    def __init__(self, remote: VectorEnv[Any, Any, Any]) -> None:
        self._remote = remote
        self._actions: np.ndarray[Any, Any] | None = None
        super().__init__(remote.num_envs, remote.single_observation_space, remote.single_action_space)

    def reset(self) -> Any:  # noqa: ANN401  # arrays, nested like the space
        """Begins an episode in every environment. The seeds of the last `seed` call apply once."""
        seeds: Any = self._seeds  # a list, which gymnasium's base class does not mention
        observation, _ = self._remote.reset(seed=seeds if any(seed is not None for seed in seeds) else None)
        self._reset_seeds()
        return observation

    def step_async(self, actions: np.ndarray[Any, Any]) -> None:
        """Keeps the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], list[dict[str, Any]]]:
        """Steps every environment, and returns observations, rewards, dones and infos."""
        observation, rewards, terminated, truncated, found = self._remote.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        dones = terminated | truncated
        for index in dones.nonzero()[0].tolist():
            final = found["final_info"]
            known = {name: values[index] for name, values in final.items() if _has(final, name, index)}
            infos[index] = known | {
                "terminal_observation": found["final_obs"][index],
                "TimeLimit.truncated": bool(truncated[index]),
            }
        return observation, rewards, dones, infos

    def close(self) -> None:
        """Closes the environments."""
        self._remote.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ANN401  # SB3's signature
        """Returns an attribute of this vector for each environment. Remote environments have no attributes."""
        return [getattr(self._remote, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ANN401  # SB3's signature
        """Raises an error, because remote environments have no attributes.

        Raises:
            ConfigurationError: Always.
        """
        del value, indices
        raise ConfigurationError(f"{attr_name!r} cannot be set; expected no call: the environments are remote")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:  # noqa: ANN401
        """Raises an error, because remote environments have no methods.

        Raises:
            ConfigurationError: Always.
        """
        del method_args, indices, method_kwargs
        raise ConfigurationError(f"{method_name!r} cannot be called; expected no call: the environments are remote")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:  # noqa: ANN401
        """Returns False for each environment, because this process wraps no environment."""
        del wrapper_class
        return [False] * len(list(self._get_indices(indices)))


def _has(info: dict[str, Any], name: str, index: int) -> bool:
    """Returns whether an environment has a value in merged infos. gymnasium marks this in a separate array."""
    return f"_{name}" in info and bool(info[f"_{name}"][index])
