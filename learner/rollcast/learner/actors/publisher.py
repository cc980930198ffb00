"""Casts policies: encodes each version once, and serves the newest."""

import threading

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.frame_stacks import stacks_of
from rollcast.actor.policies.make import make_policy
from rollcast.services.errors import InvalidInputError, NotReadyError
from rollcast.services.policies.codec import EncodedPolicy, encode_policy
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation


class PolicyPublisher:
    """The newest policy, encoded: a `rollcast.services.policies.service.PolicySource`.

    Invariant: versions count up by one, and each is encoded exactly once, by the thread that publishes it. The
    trainer's thread calls `publish` and `end`; any thread calls the rest.

    Attributes:
        spaces: See Args.
        state_size: S, the size of a recurrent policy's state; 0 if it is not recurrent.
        frame_stack: K, the frames that the policy sees at once.

    Args:
        spaces: The spaces of the policy's observations and actions.
        spec: The policy's architecture.
        seed: The seed of the sampling in `act`.
        first_version: The version of the first policy that is published.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, seed: int, first_version: int = 1) -> None:
        self.spaces = spaces
        self.state_size, self.frame_stack = spec.state_size, spec.frame_stack
        self._spec = spec
        self._executed = {key: ExecutedActions(substep.action) for key, substep in spaces.items()}
        self._seed = seed
        self._changed = threading.Condition()  # guards the newest policy and the end
        self._newest: tuple[EncodedPolicy, PolicyState] | None = None
        self._next_version = first_version
        self._ended = False
        self._acting = threading.Lock()  # guards the policy that serves `act`
        self._policy: Policy | None = None

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        with self._changed:
            return self._newest[0].version if self._newest else 0

    @property
    def ended(self) -> bool:
        """True once no further version will come."""
        with self._changed:
            return self._ended

    def publish(self, state: PolicyState) -> int:
        """Encodes a new version, wakes every subscriber, and returns the version."""
        encoded = encode_policy(self._next_version, state)
        with self._changed:
            self._next_version += 1
            self._newest = encoded, state
            self._changed.notify_all()
        return encoded.version

    def newest_with_state(self) -> tuple[EncodedPolicy, PolicyState]:
        """Returns the newest version, and its arrays.

        Raises:
            NotReadyError: There is no version yet.
        """
        with self._changed:
            return self._require_newest()

    def end(self) -> None:
        """Notes that no further version will come, and wakes every subscriber."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def newest(self) -> EncodedPolicy:
        """Returns the newest version.

        Raises:
            NotReadyError: There is no version yet.
        """
        with self._changed:
            return self._require_newest()[0]

    def wait_newer(self, version: int, timeout_s: float) -> EncodedPolicy | None:
        """Waits for a version above `version`; returns None if none came in time, or none will come."""

        def newer() -> bool:
            return self._newest is not None and self._newest[0].version > version

        with self._changed:
            self._changed.wait_for(lambda: newer() or self._ended, timeout_s)
            return self._newest[0] if self._newest is not None and newer() else None

    def act(
        self,
        observation: Observation,
        *,
        substep_key: str,
        deterministic: bool,
        state: RecurrentState | None = None,
        previous: Observation | None = None,
    ) -> tuple[NDArray[np.generic], int]:
        """Chooses actions `[N, ...]` for observations `[N, ...]` with the newest policy; returns them and its version.

        The actions are as an environment gets them: inside the space. The state `[N, S]` of a recurrent policy is
        changed in place to the one for the next observations. `previous` are the frames `[N, K - 1, ...]` before the
        observations, if the policy sees K at once; None: episodes begin.

        Raises:
            NotReadyError: There is no policy yet.
            InvalidInputError: There is no such substep, or the state has another shape.
        """
        if substep_key not in self.spaces:
            raise InvalidInputError(
                f"substep_key {substep_key!r} does not exist; expected one of {sorted(self.spaces)}"
            )
        if self.frame_stack > 1:
            observation = stacks_of(observation, previous, self.frame_stack)
        with self._acting:
            with self._changed:
                encoded, weights = self._require_newest()
            if self._policy is None:
                self._policy = make_policy(self.spaces, self._spec, seed=self._seed, allowed_network=self._spec.network)
            if self._policy.version != encoded.version:
                self._policy.load(encoded.version, weights)
            action, _ = self._policy.act(observation, deterministic=deterministic, substep_key=substep_key, state=state)
            return np.array(self._executed[substep_key](action)), encoded.version

    def _require_newest(self) -> tuple[EncodedPolicy, PolicyState]:
        if self._newest is None:
            raise NotReadyError("there is no policy yet: the learner is starting; try again with backoff")
        return self._newest
