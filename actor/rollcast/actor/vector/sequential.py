"""Steps environments in sequence, in this process."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from rollcast.actor.vector.arrays import Buffer, EnvironmentArrays
from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.actor.vector.environment_group import EnvFactory, EnvironmentGroup, EnvironmentInfos


class SequentialVectorEnv(LockstepVectorEnv):
    """A vector that steps its environments in sequence, for cheap environments and for debugging.

    This vector gives the same values as `SubprocVectorEnv`.
    """

    def __init__(
        self,
        env_factories: Sequence[EnvFactory],
        logging_prefix: str | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        info_keys: Collection[str] | None = None,
    ) -> None:
        """Makes the environments.

        Args:
            env_factories: Each makes one environment.
            logging_prefix: Logs statistics under this name every 1,000 episodes; None: keeps them without logging.
            autoreset_mode: The time of an environment's reset after its episode has ended, as in gymnasium.
            copy: True: observations are copies. False: they are views that the next step overwrites.
            info_keys: The returned keys of infos; None: all keys.

        Raises:
            ConfigurationError: If there is no factory.
            EnvironmentFailedError: If an environment cannot be made.
            InvalidSpaceError: If spaces differ or are not supported.
        """
        super().__init__(env_factories, logging_prefix, autoreset_mode=autoreset_mode, copy=copy)
        self._group = EnvironmentGroup(env_factories, 0, self.autoreset_mode, info_keys)
        try:
            self._take_description([self._group.describe()])
        except BaseException:
            self._group.close()
            raise
        spaces = (self.single_observation_space, self.single_action_space)
        memory = bytearray(EnvironmentArrays.n_bytes(*spaces, self.num_envs))
        self._arrays = EnvironmentArrays(*spaces, self.num_envs, Buffer(memory))
        self._group.attach(self._arrays, memoryview(bytearray(8)).cast("q"), 0)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401 - gymnasium's signature
        """Closes the environments."""
        self._arrays = None
        self._group.close()

    def _reset_all(self, seeds: list[list[int]], options: dict[str, Any] | None) -> Mapping[int, EnvironmentInfos]:
        return self._group.reset(seeds, options)

    def _step_all(self) -> Mapping[int, EnvironmentInfos]:
        return self._group.step()

    def _call_all(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self._group.call(name, args, kwargs))

    def _set_all(self, name: str, values: list[Any]) -> None:
        self._group.set_attr(name, values)
