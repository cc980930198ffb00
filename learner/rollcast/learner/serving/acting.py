"""Acts with the newest policy for the callers of `Act`. Calls that arrive together share one forward pass."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.frame_stacks import stacks_of
from rollcast.actor.policies.make import make_policy
from rollcast.services.errors import InvalidInputError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation
from rollcast.services.status.status import ActStatus

# The largest number of observations in one forward pass, unless a single call has more.
_MOST_TOGETHER: Final = 1024
# The number of calls whose durations are kept.
_N_TIMES: Final = 1024


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """A call that waits or has an answer."""

    substep_key: str
    deterministic: bool
    observation: Observation
    state: RecurrentState | None
    n: int
    answer: tuple[NDArray[np.generic], int] | None = None
    error: Exception | None = None
    began: float = field(default_factory=time.perf_counter)


class BatchedActing:
    """Chooses actions for callers in any thread.

    The caller that gets the lock acts for all waiting callers. No caller waits for a batch to fill. A lone caller wakes
    no other thread.

    Invariant: a call waits at most for the current forward pass and for one more of the same kind.

    Args:
        spaces: The spaces of the policy, by substep key.
        spec: Its architecture.
        newest: Returns the newest version and its arrays; raises `NotReadyError` before the first version.
        seed: Seeds the sampling of actions.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        newest: Callable[[], tuple[int, PolicyState]],
        *,
        seed: int,
    ) -> None:
        self._spaces, self._spec, self._newest, self._seed = spaces, spec, newest, seed
        self._executed = {key: ExecutedActions(substep.action) for key, substep in spaces.items()}
        self._waiting: deque[_Call] = deque()
        self._acting = threading.Lock()  # guards the policy, and the numbers below
        self._policy: Policy | None = None
        self._n_calls = self._n_observations = self._n_passes = 0
        self._times_s: deque[float] = deque(maxlen=_N_TIMES)

    def act(
        self,
        observation: Observation,
        *,
        substep_key: str,
        deterministic: bool,
        state: RecurrentState | None = None,
        previous: Observation | None = None,
    ) -> tuple[NDArray[np.generic], int]:
        """Chooses actions; see `rollcast.services.policies.service.PolicySource.act`.

        Raises:
            NotReadyError: No policy has been published yet.
            InvalidInputError: The substep does not exist, or the state has the wrong shape.
        """
        if substep_key not in self._spaces:
            raise InvalidInputError(
                f"substep_key {substep_key!r} does not exist; expected one of {sorted(self._spaces)}"
            )
        if self._spec.frame_stack > 1:
            observation = stacks_of(observation, previous, self._spec.frame_stack)
        call = _Call(
            substep_key=substep_key,
            deterministic=deterministic,
            observation=observation,
            state=state,
            n=len(next(iter(observation.values()))),
        )
        self._waiting.append(call)
        with self._acting:
            if call.answer is None and call.error is None:
                self._answer(self._take_with(call))
            self._n_calls += 1
            self._n_observations += call.n
            self._times_s.append(time.perf_counter() - call.began)
        if call.error is not None:
            raise call.error
        assert call.answer is not None
        return call.answer

    def status(self) -> ActStatus:
        """Returns how many calls were answered, and how long they took."""
        with self._acting:
            times = np.array(self._times_s)
            p50, p99 = np.percentile(times, (50, 99)).tolist() if len(times) else (0.0, 0.0)
            return ActStatus(
                calls=self._n_calls,
                observations=self._n_observations,
                forward_passes=self._n_passes,
                p50_s=p50,
                p99_s=p99,
            )

    def _take_with(self, call: _Call) -> list[_Call]:
        """Takes a call, and the waiting calls that fit into its forward pass. The caller holds the lock."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        taken, n = [call], call.n
        left: list[_Call] = []
        for other in waiting:
            fits = (other.substep_key, other.deterministic) == (call.substep_key, call.deterministic)
            if other is not call and fits and n + other.n <= _MOST_TOGETHER:
                taken.append(other)
                n += other.n
            elif other is not call:
                left.append(other)
        self._waiting.extendleft(reversed(left))
        return taken

    def _answer(self, calls: list[_Call]) -> None:
        try:
            version, actions = self._actions_of(calls)
        except Exception as error:  # noqa: BLE001  # each caller raises it, whatever it is
            for call in calls:
                call.error = error
            return
        start = 0
        for call in calls:
            call.answer = actions[start : start + call.n], version
            start += call.n

    def _actions_of(self, calls: list[_Call]) -> tuple[int, NDArray[np.generic]]:
        version, weights = self._newest()
        if self._policy is None:
            self._policy = make_policy(self._spaces, self._spec, seed=self._seed, allowed_network=self._spec.network)
        if self._policy.version != version:
            self._policy.load(version, weights)
        first = calls[0]
        observation, state = first.observation, first.state
        if len(calls) > 1:
            observation = {
                path: np.concatenate([call.observation[path] for call in calls]) for path in first.observation
            }
            if self._spec.state_size:
                state = np.concatenate([call.state for call in calls if call.state is not None])
        action, _ = self._policy.act(
            observation, deterministic=first.deterministic, substep_key=first.substep_key, state=state
        )
        if len(calls) > 1 and state is not None:
            ends = np.cumsum([call.n for call in calls])[:-1]
            for call, rows in zip(calls, np.split(state, ends), strict=True):
                assert call.state is not None
                call.state[...] = rows
        self._n_passes += 1
        return version, np.array(self._executed[first.substep_key](action))
