"""Steps a simulator on a device, such as a GPU, and records rollouts on this device."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rollcast.actor.environments.failures import environment_failure
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.vector.make import environment_spaces
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.env_seeds import seed_vector
from rollcast.actor.workers.flat import autoreset_mode
from rollcast.actor.workers.recording import EpisodeTracker, PlayedRows
from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.errors import ActorFailedError, ConfigurationError, InvalidSpaceError
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, space_leaves

logger = logging.getLogger(__name__)

_FINAL: Final = "final_obs"


class DeviceRolloutWorker(Worker[VectorEnv]):
    """A worker for vectors that take and return torch tensors, such as thousands of environments on one GPU.

    Policy, sampling and recording run on the device of the vector. Within a rollout, no thread waits for the device. At
    the end of a rollout, the worker copies the T steps to pinned memory together.

    The worker supports both autoreset modes, like `RolloutWorker`. Many simulators reset in the same step and do not
    return the last observation of an episode (`infos["final_obs"]`, `[B, ...]` for every leaf). In a truncated episode,
    the worker then uses the second-to-last observation, and logs this once.

    For arguments and invariants, see `RolloutWorker`. The policy is a `TorchActingPolicy` on the vector's device.

    Raises:
        ConfigurationError: See `RolloutWorker`. Also if the policy cannot act on the device.
    """

    def _prepare(self, env_seed: int | Sequence[int]) -> None:
        vector_env, policy = self._vector_env, self._policy
        spaces = environment_spaces(vector_env)[FLAT_SUBSTEP]
        if not isinstance(policy, TorchActingPolicy) or not policy.is_stochastic or policy.frame_stacks(1) is not None:
            raise ConfigurationError(
                f"the vector environment {vector_env} returns tensors, but the policy samples in main memory; expected "
                "a policy of PPO, APPO or IMPALA without a frame stack; choose such a policy, or make the environment "
                "return arrays"
            )
        self._acting, self._device = policy, policy.device
        self._observation_space = spaces.observation
        self._leaves = space_leaves(spaces.observation)
        n_steps, n_envs = self._n_steps, vector_env.num_envs
        self._has_reset_rows = autoreset_mode(vector_env) is AutoresetMode.NEXT_STEP
        self._env_seeds, self._reset_seed = seed_vector(env_seed, vector_env)
        self._episodes = EpisodeTracker(n_envs, has_reset_rows=self._has_reset_rows)
        self._observation = {
            path: self._empty((n_steps + 1, n_envs, *(leaf.shape or ())), leaf) for path, leaf in self._leaves.items()
        }
        # Filled in the steps whose infos have final observations; empty: the vector returns no final observations.
        self._final: dict[str, Tensor] = {}
        self._action = self._empty((n_steps, n_envs, *(spaces.action.shape or ())), spaces.action)
        self._log_prob, self._reward = (torch.empty((n_steps, n_envs), device=self._device) for _ in range(2))
        self._terminated, self._truncated = (
            torch.empty((n_steps, n_envs), dtype=torch.bool, device=self._device) for _ in range(2)
        )
        self._state = None
        if (state := policy.initial_state(n_envs)) is not None:
            self._state = torch.from_numpy(state).to(self._device)
        bounds = self._executed[FLAT_SUBSTEP].bounds
        self._bounds = None if bounds is None else [torch.from_numpy(bound).to(self._device) for bound in bounds]
        self._ended: Tensor | None = None
        self._has_begun = False
        self._lacks_finals = False

    def collect(self, should_stop: Callable[[], bool] | None = None) -> Rollout | None:
        """Takes T steps and returns their rollout; see `RolloutWorker.collect`."""
        if not self._has_begun:
            self._store(0, self._asked("reset", lambda: self._vector_env.reset(seed=self._reset_seed))[0])  # type: ignore[arg-type]  # gymnasium's type lacks sequences
            self._has_begun = True
        first_state = None if self._state is None else self._state.clone()
        for t in range(self._n_steps):
            if should_stop is not None and should_stop():
                return None
            self._step(t)
        rollout = self._rollout(first_state)
        for column in self._observation.values():
            column[0].copy_(column[-1])
        return rollout

    def _step(self, t: int) -> None:
        """Takes step t without waiting for the device."""
        seen = {path: column[t] for path, column in self._observation.items()}
        action, log_prob = self._acting.act_on_device(seen, deterministic=self._deterministic, state=self._state)
        if self._policy_events is not None:
            self._policy_events.end_step()
        self._action[t].copy_(action)
        self._log_prob[t].copy_(log_prob)
        executed = action if self._bounds is None else torch.clamp(action, *self._bounds)
        observation, reward, terminated, truncated, infos = self._asked("step", lambda: self._vector_env.step(executed))
        self._store(t + 1, observation)
        for column, values in (
            (self._reward, reward),
            (self._terminated, terminated),
            (self._truncated, truncated),
        ):
            column[t].copy_(self._checked(values, "reward and flags", column[t].shape))
        if _FINAL in infos and not self._has_reset_rows:
            if not self._final:
                self._final = {path: torch.empty_like(column[1:]) for path, column in self._observation.items()}
            self._store(t, infos[_FINAL], self._final)
        if self._state is not None:
            ended = self._terminated[t] | self._truncated[t]
            # a reset row keeps the state, so that its observation can be valued
            begins = self._ended if self._has_reset_rows else ended
            if begins is not None:
                self._state.masked_fill_(begins[:, None], 0.0)
            self._ended = ended

    def _rollout(self, first_state: Tensor | None) -> Rollout:
        """Copies the steps to main memory, and returns them as a rollout."""
        finals, final_index = self._finals()
        columns = (self._observation, {"": self._action}, {"": self._log_prob}, finals)
        flat = [leaf for column in columns for leaf in column.values()]
        flat += [self._reward, self._terminated, self._truncated, final_index]
        if first_state is not None:
            flat.append(first_state)
        copies = self._to_host(flat)
        observation, action, log_prob, final = ({path: next(copies) for path in column} for column in columns)
        rows, index = PlayedRows(next(copies), next(copies), next(copies)), next(copies)
        valid, episodes = self._episodes.finish(rows, self._n_steps, {})
        initial_state = next(copies, None)
        if initial_state is not None and valid is not None:
            # a reset row comes before the first transition, and an episode begins there
            initial_state = np.where(valid[0][:, None], initial_state, np.float32(0.0))
        rollout = Rollout(
            actor_id=self._actor_id,
            incarnation=self._incarnation,
            sequence=self._sequence,
            policy_version=self._policy.version,
            substeps={
                FLAT_SUBSTEP: SubstepColumns(
                    observation={path: column[:-1] for path, column in observation.items()},
                    action=action[""],
                    log_prob=log_prob[""],
                    last_observation={path: column[-1] for path, column in observation.items()},
                    final_observation=final,
                    initial_state=initial_state,
                )
            },
            reward=rows.reward,
            terminated=rows.terminated,
            truncated=rows.truncated,
            valid=valid,
            final_index=index.astype(np.int32).reshape(-1, 2),
            episodes=episodes,
            env_seeds=self._env_seeds,
            events=self._policy_events.end_episode() if self._policy_events is not None else (),
        )
        self._check(rollout)
        self._sequence += 1
        return rollout

    def _finals(self) -> tuple[Mapping[str, Tensor], Tensor]:
        """Returns the final observations, `[N, ...]` for every leaf, and their rows (t, b), int64 `[N, 2]`."""
        ended = self._terminated | self._truncated
        if self._has_reset_rows:
            ended = torch.zeros_like(ended)
        index = ended.nonzero()
        t, b = index.unbind(dim=1)
        if not self._final and len(index) and not self._lacks_finals:
            self._lacks_finals = True
            logger.warning(
                "%s returns no infos['final_obs'] at the end of an episode: a truncated episode has the value of its "
                "second-to-last observation",
                self._vector_env,
            )
        source = self._final or {path: column[:-1] for path, column in self._observation.items()}
        return {path: column[t, b] for path, column in source.items()}, index

    def _to_host(self, tensors: Sequence[Tensor]) -> Iterator[NDArray[Any]]:
        """Copies tensors to main memory, all at once, and waits for the copies."""
        is_cuda = self._device.type == "cuda"
        copies = [torch.empty(one.shape, dtype=one.dtype, pin_memory=is_cuda) for one in tensors]
        for copy, one in zip(copies, tensors, strict=True):
            copy.copy_(one, non_blocking=True)
        if is_cuda:
            torch.cuda.current_stream(self._device).synchronize()
        return iter([copy.numpy() for copy in copies])

    def _store(self, t: int, observation: Any, columns: Mapping[str, Tensor] | None = None) -> None:  # noqa: ANN401 - nested as the space is
        for path, leaf in _flat(self._observation_space, observation):
            row = (columns or self._observation)[path][t]
            row.copy_(self._checked(leaf, f"the observation at {path!r}" if path else "the observation", row.shape))

    def _checked(self, value: Any, what: str, shape: torch.Size) -> Tensor:  # noqa: ANN401 - of a simulator
        found = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            if value.device == self._device and value.shape == shape:
                return value
            found = f"a tensor {list(value.shape)} on {value.device}"
        raise InvalidSpaceError(
            f"{what} of {self._vector_env} is {found}; expected a tensor {list(shape)} on {self._device}, the device "
            "of the vector; make the simulator return tensors of its spaces on its device"
        )

    def _asked(self, doing: str, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a simulator
        try:
            return ask()
        except ActorFailedError:
            raise
        except (Exception, SystemExit) as error:
            raise environment_failure(error, self._vector_env, doing=doing, env_seeds=self._env_seeds) from error

    def _empty(self, shape: tuple[int, ...], space: Space[Any]) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, str(space.dtype)), device=self._device)


def _flat(space: Space[Any], value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - nested as the space is
    """Yields the leaves of a nested observation with their paths, as in `space_leaves`."""
    if isinstance(space, Dict | Tuple):
        members = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, member in members:
            yield from _flat(member, value[key], f"{path}/{key}" if path else str(key))
    else:
        yield path, value
