"""Presents a vector of one environment as a single environment, to evaluate policies trained in such vectors."""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from rollcast.actor.environments.device import device_of
from rollcast.services.spaces.spaces import NestedObservation

_Info = dict[str, Any]


class OneOfVector(gymnasium.Env[NestedObservation, Any]):
    """The only environment of a vector, as a `gymnasium.Env` with empty infos, because vectors merge infos.

    Args:
        vector_env: A vector of one environment; closed by `close`.
    """

    def __init__(self, vector_env: VectorEnv) -> None:
        self._vector_env = vector_env
        self._device = device_of(vector_env)
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space
        self.metadata = dict(vector_env.metadata)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NestedObservation, _Info]:
        """Begins an episode; see `gymnasium.Env.reset`."""
        observation, _ = self._vector_env.reset(seed=seed, options=options)
        return self._first(observation), {}

    def step(self, action: NDArray[Any]) -> tuple[NestedObservation, float, bool, bool, _Info]:
        """Takes a step. At the end of an episode, returns the episode's last observation, even if the vector resets."""
        actions: Any = np.asarray(action, self.action_space.dtype)[None]
        if self._device is not None:
            import torch  # its simulator has loaded it

            actions = torch.from_numpy(actions).to(self._device)
        observation, reward, terminated, truncated, infos = self._vector_env.step(actions)
        ends = bool(terminated[0]), bool(truncated[0])
        if any(ends) and "final_obs" in infos:
            final = infos["final_obs"]
            is_object = isinstance(final, np.ndarray) and final.dtype == object
            last: NestedObservation = final[0] if is_object else self._first(final)
        else:
            last = self._first(observation)
        return last, float(reward[0]), *ends, {}

    def set_progress(self, progress: float) -> None:
        """Passes the progress of training to the vector, if the vector accepts it."""
        if (method := getattr(self._vector_env.unwrapped, "set_progress", None)) is not None:
            method(progress)

    def close(self) -> None:
        """Closes the vector."""
        self._vector_env.close()

    def _first(self, batched: Any) -> NestedObservation:  # noqa: ANN401 - nested as the space is
        if self._device is not None:
            batched = _as_arrays(batched)
        # A copy, because vectors reuse one buffer.
        first: NestedObservation = copy.deepcopy(next(iter(iterate(self._vector_env.observation_space, batched))))
        return first


def _as_arrays(nested: Any) -> Any:  # noqa: ANN401 - nested as the space is
    """Returns a nested observation with its tensors as arrays."""
    if isinstance(nested, Mapping):
        return {key: _as_arrays(member) for key, member in nested.items()}
    if isinstance(nested, tuple):
        return tuple(map(_as_arrays, nested))
    return nested.cpu().numpy()
