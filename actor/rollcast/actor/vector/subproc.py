"""Steps environments in processes, several in each process, through shared memory."""

import multiprocessing
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.vector.arrays import EnvironmentArrays, Value
from rollcast.actor.vector.base import LockstepVectorEnv, NotesFailure
from rollcast.actor.vector.child import ChildPlan, MemoryLayout, SentFactories
from rollcast.actor.vector.child_process import ChildProcess
from rollcast.actor.vector.doorbell import Operation, hear_any
from rollcast.actor.vector.environment_group import EnvFactory, EnvironmentInfos
from rollcast.actor.vector.shared_memory import SharedMemory
from rollcast.services.errors import ConfigurationError, RefusedError
from rollcast.services.process.cores import usable_cores

# Time for the environments of all processes to close, in seconds.
_CLOSE_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadySteps:
    """The results of k environments.

    Attributes:
        env_indices: The indices of the environments, int64 `[k]`.
        observations: The observations, each leaf `[k, ...]`.
        rewards: float32 `[k]`.
        terminated: bool `[k]`.
        truncated: bool `[k]`.
        infos: The infos, in the form that `step` returns. Arrays have an entry for every environment of the vector.
    """

    env_indices: NDArray[np.int64]
    observations: Value
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: dict[str, Any]


class SubprocVectorEnv(LockstepVectorEnv):
    """A vector that steps its environments in processes.

    Observations, actions and rewards pass through shared memory without pickling. Infos pass through a pipe. Each side
    polls for the other's signal for up to 100 us before it sleeps, unless recent waits were longer.

    An exception in an environment reaches the caller with its traceback, and with the environment's index and seed. The
    vector reports a process that ended or hangs in the same way. `close`, the deletion of the vector, and any end of
    the parent end the processes. The last process frees the unnamed shared memory.
    """

    def __init__(
        self,
        env_factories: Sequence[EnvFactory],
        logging_prefix: str | None = None,
        start_method: str | None = None,
        *,
        envs_per_process: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        info_keys: Collection[str] | None = None,
        timeout_s: float | None = 300.0,
    ) -> None:
        """Starts the processes, and waits until the environments are made.

        Args:
            env_factories: Each makes one environment; closures and lambdas work.
            logging_prefix: Logs statistics under this name every 1,000 episodes; None: keeps them without logging.
            start_method: A start method of multiprocessing; None: forkserver if available, otherwise spawn.
            envs_per_process: The number of environments in each process; None: one process for each core.
            autoreset_mode: The time of an environment's reset after its episode has ended, as in gymnasium.
            copy: True: observations are copies. False: they are views that the next step overwrites.
            info_keys: The returned keys of infos, which are pickled; None: all keys.
            timeout_s: The time limit for a process to make, reset or step its environments, in seconds; None: no limit.

        Raises:
            ConfigurationError: If an argument is wrong, or the factories cannot be sent to a process.
            EnvironmentFailedError: If an environment cannot be made.
            EnvironmentLostError: If a process ended, or took too long.
            InvalidSpaceError: If spaces differ or are not supported.
        """
        super().__init__(env_factories, logging_prefix, autoreset_mode=autoreset_mode, copy=copy)
        self._workers: list[ChildProcess] = []
        # The processes between `send` and `recv`.
        self._stepping: list[ChildProcess] = []
        n_envs = self.num_envs
        if envs_per_process is None:
            envs_per_process = -(-n_envs // min(n_envs, usable_cores()))
        if envs_per_process < 1:
            raise ConfigurationError(f"envs_per_process is {envs_per_process}; expected at least 1; raise it")
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigurationError(f"timeout_s is {timeout_s}; expected a positive number of seconds, or None")
        self._timeout_s = timeout_s
        context = multiprocessing.get_context(_start_method(start_method))
        try:
            for first in range(0, n_envs, envs_per_process):
                factories: Any = list(env_factories[first : first + envs_per_process])
                plan = ChildPlan(
                    env_factories=SentFactories(factories),
                    first_index=first,
                    autoreset_mode=self.autoreset_mode,
                    info_keys=info_keys,
                    child=len(self._workers),
                    parent_pid=os.getpid(),
                )
                self._workers.append(ChildProcess(context, plan, len(factories), timeout_s))
            self._take_description([worker.describe() for worker in self._workers])
            self._share_memory()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the child processes."""
        return tuple(worker.pid for worker in self._workers if worker.pid is not None)

    def send(self, actions: Value, env_indices: NDArray[np.int64] | None = None) -> None:
        """Begins a step of some environments; `recv` returns the results.

        Args:
            actions: Actions nested like the action space, each leaf `[k, ...]`.
            env_indices: The indices of the environments, int64 `[k]`: either all or none of a process, as `recv`
                returns them. None: all environments.

        Raises:
            ConfigurationError: If `env_indices` has only some environments of a process.
            EnvironmentLostError: If a process has ended.
            InvalidValueError: If the actions do not fit the action space.
            RefusedError: If one of the environments is in a step already. See also `step`.
        """
        arrays = self._open_arrays()
        indices = np.arange(self.num_envs) if env_indices is None else np.asarray(env_indices, dtype=np.int64)
        wanted = set(indices.tolist())
        workers = [worker for worker in self._workers if wanted.intersection(worker.indices)]
        if sorted(indices.tolist()) != [index for worker in workers for index in worker.indices]:
            raise ConfigurationError(
                f"env_indices is {indices.tolist()}; expected either all or none of each process's environments, "
                f"{[list(worker.indices) for worker in self._workers]}; send the indices that recv returned"
            )
        busy = [index for worker in workers if worker in self._stepping for index in worker.indices]
        if busy:
            raise RefusedError(f"environments {busy} are in a step; expected other environments; call recv() first")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._check_none_ended(arrays, indices)
        arrays.action.put_some(indices, actions)
        with NotesFailure(self):
            for worker in workers:
                worker.begin(Operation.STEP)
                self._stepping.append(worker)

    def recv(self, n_min: int = 1) -> ReadySteps:
        """Waits until `n_min` environments have finished their step, and returns the finished environments' results.

        Args:
            n_min: The minimum number of environments.

        Returns:
            The results, as copies.

        Raises:
            ConfigurationError: If fewer environments are in a step.
            EnvironmentFailedError: See `step`.
            EnvironmentLostError: See `step`.
            RefusedError: See `step`.
        """
        arrays = self._open_arrays()
        n_stepping = sum(len(worker.indices) for worker in self._stepping)
        if not 1 <= n_min <= n_stepping:
            raise ConfigurationError(
                f"n_min is {n_min}; expected 1 to {n_stepping}, the environments in a step; send more, or lower n_min"
            )
        with NotesFailure(self):
            infos, workers = self._finish_some(n_min)
        indices = np.array([index for worker in workers for index in worker.indices], dtype=np.int64)
        terminated, truncated = arrays.terminated[indices], arrays.truncated[indices]
        ended: list[int] = indices[terminated | truncated].tolist()
        self._count_episodes(ended, infos)
        return ReadySteps(
            env_indices=indices,
            observations=arrays.observation.some(indices),
            rewards=arrays.reward[indices],
            terminated=terminated,
            truncated=truncated,
            infos=self._merge(infos, ended),
        )

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401 - gymnasium's signature
        """Closes the environments and ends the processes. Kills processes that do not end."""
        workers, self._workers = self._workers, []
        self._stepping.clear()
        self._arrays = None
        for worker in workers:
            worker.ask_to_end()
        deadline = time.monotonic() + _CLOSE_GRACE_S
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))

    def __del__(self) -> None:
        if not self.closed and getattr(self, "_workers", None):
            self.close()

    def _share_memory(self) -> None:
        layout = MemoryLayout(
            observation_space=self.single_observation_space,
            action_space=self.single_action_space,
            n_envs=self.num_envs,
            n_children=len(self._workers),
        )
        memory = SharedMemory.create(layout.n_bytes())
        try:
            for worker in self._workers:
                worker.attach(memory, layout)
            _, self._arrays = layout.lay_out(memory)
        finally:
            memory.close()

    def _ready_arrays(self) -> EnvironmentArrays:
        if self._stepping:
            raise RefusedError("environments are in a step; expected none between send() and recv(); call recv() first")
        return self._open_arrays()

    def _finish_some(self, n_min: int) -> tuple[dict[int, EnvironmentInfos], list[ChildProcess]]:
        infos: dict[int, EnvironmentInfos] = {}
        finished: list[ChildProcess] = []
        n_missing = n_min
        while n_missing > 0:
            places = hear_any([worker.awaited for worker in self._stepping], self._timeout_s)
            if not places:
                # No step has finished: this call raises the error of a hanging process.
                self._stepping[0].finish(Operation.STEP, timeout_s=0.0)
            for worker in [self._stepping[place] for place in places]:
                infos.update(worker.finish(Operation.STEP) or {})
                self._stepping.remove(worker)
                finished.append(worker)
                n_missing -= len(worker.indices)
        return infos, finished

    def _reset_all(self, seeds: list[list[int]], options: dict[str, Any] | None) -> Mapping[int, EnvironmentInfos]:
        arguments = [(seeds[worker.indices.start : worker.indices.stop], options) for worker in self._workers]
        return _joined(self._run(Operation.RESET, arguments))

    def _step_all(self) -> Mapping[int, EnvironmentInfos]:
        workers = self._workers
        for worker in workers:
            worker.begin(Operation.STEP)
        infos: dict[int, EnvironmentInfos] = {}
        for worker in workers:
            told = worker.finish(Operation.STEP)
            if told is not None:
                infos.update(told)
        return infos

    def _call_all(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        results = self._run(Operation.CALL, [(name, args, kwargs)] * len(self._workers))
        return tuple(one for several in results for one in several.values())

    def _set_all(self, name: str, values: list[Any]) -> None:
        self._run(
            Operation.SET_ATTR,
            [(name, values[worker.indices.start : worker.indices.stop]) for worker in self._workers],
        )

    def _run(self, operation: Operation, arguments: Sequence[object]) -> list[Any]:
        try:
            # Before any process begins, which would wait for an argument that cannot be sent.
            # Bytes: a view of a BytesIO stays in the frames of what an environment raises, and CPython 3.12.1 crashes
            # when it collects such frames (https://github.com/python/cpython/issues/111049).
            pickled = [bytes(ForkingPickler.dumps(argument)) for argument in arguments]
        except Exception as error:
            raise ConfigurationError(
                f"the arguments of {operation.name.lower()} cannot be sent to the environments' processes: {error}; "
                "expected values that can be pickled; remove locks, files and similar objects"
            ) from error
        for worker, argument in zip(self._workers, pickled, strict=True):
            worker.begin(operation, argument)
        results: list[Any] = []
        failure: EnvironmentFailedError | None = None
        for worker in self._workers:
            try:
                results.append(worker.finish(operation))
            except EnvironmentFailedError as error:
                # Reads every answer, so that the next operation does not read an old one.
                failure = failure or error
        if failure is not None:
            raise failure
        return results


def _start_method(start_method: str | None) -> str:
    available = multiprocessing.get_all_start_methods()
    method = start_method or ("forkserver" if "forkserver" in available else "spawn")
    if method not in available:
        raise ConfigurationError(f"start_method is {method!r}; expected one of {available}; choose another, or None")
    return method


def _joined(told: Sequence[dict[int, EnvironmentInfos] | None]) -> dict[int, EnvironmentInfos]:
    return {index: infos for one in told if one is not None for index, infos in one.items()}
