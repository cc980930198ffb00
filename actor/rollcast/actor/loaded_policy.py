"""Loads a policy that a run has saved, to act with it in your own program."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.policies.base import RecurrentState
from rollcast.actor.policies.frame_stacks import FrameStacks
from rollcast.actor.policies.make import make_saved_policy
from rollcast.services.errors import ConfigurationError, InvalidInputError, InvalidTensorError
from rollcast.services.policies.policies import AUTO_NETWORK, BUILT_IN_NETWORKS, PolicyName, SavedPolicy
from rollcast.services.policies.saved import read_run_policy, read_saved_policy
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import (
    EnvironmentSpaces,
    NestedObservation,
    describe_space,
    flatten_observation,
    space_leaves,
)


def load_policy(
    run_or_file: str | Path,
    *,
    name: PolicyName = "best",
    network: str = AUTO_NETWORK,
    spaces: EnvironmentSpaces | None = None,
    seed: int = 0,
) -> "LoadedPolicy":
    """Loads a policy that a run has saved.

        policy = load_policy("runs/mine")
        observation, _ = env.reset()
        action = policy.act(observation, deterministic=True)

    A recurrent policy keeps its state between calls. A policy with a frame stack keeps the last frames. Call
    `policy.reset()` at the beginning of an episode.

    An MLP acts in numpy and needs no torch. A CNN or your own network needs the extra `torch`.

    Args:
        run_or_file: A run directory, or a `.safetensors` file of a run, or a copy of this file.
        name: The policy of the run directory: `"best"`, or `"last"`.
        network: Your own network with which the policy was trained, as `"package.module:factory"`. You name it because
            a file must not decide which module is imported.
        spaces: The spaces of the environment by substep key, for files without them; see `probe_spaces`.
        seed: Seeds the sampling of actions.

    Raises:
        ConfigurationError: There is no such policy, or the file is not a policy. Or the policy needs your own network
            and you did not name it, or the file has no spaces and you gave none.
        ProtocolMismatchError: The weights do not fit the spaces.
    """
    saved, known = find_saved_policy(run_or_file, name=name, network=network, spaces=spaces)
    return LoadedPolicy(saved, known, seed=seed)


def find_saved_policy(
    run_or_file: str | Path,
    *,
    name: PolicyName = "best",
    network: str = AUTO_NETWORK,
    spaces: EnvironmentSpaces | None = None,
) -> tuple[SavedPolicy, EnvironmentSpaces]:
    """Reads a policy that a run has saved, without its network; see `load_policy` for arguments and errors.

    Returns:
        The policy and its spaces.
    """
    path = Path(run_or_file)
    if path.is_dir():
        saved = read_run_policy(path, name)
    elif path.is_file():
        saved = read_saved_policy(path)
    else:
        raise ConfigurationError(
            f"there is no {path}; expected a run directory, or a .safetensors file of a run; give the path that "
            "the summary of the run printed"
        )
    if saved.spec.network not in (*BUILT_IN_NETWORKS, network):
        raise ConfigurationError(
            f"the policy of {path} was trained with the network {saved.spec.network!r}; expected {network!r}; if you "
            f"trust that code, name it: load_policy(..., network={saved.spec.network!r}), or --network"
        )
    known = saved.spaces if spaces is None else spaces
    if known is None:
        raise ConfigurationError(
            f"the policy of {path} has no spaces: it is older than version 0.1, or the spaces are too large; expected "
            "spaces in the file; call load_policy(..., spaces=probe_spaces(EnvironmentFactory(env_id)))"
        )
    return saved, known


class LoadedPolicy:
    """A saved policy that acts, and that keeps its recurrent state or its last frames between calls.

    Not thread-safe.

    Attributes:
        saved: The saved policy: version, environment steps, mean return and arrays.
        spaces: The policy's spaces, by substep key.
    """

    def __init__(self, saved: SavedPolicy, spaces: EnvironmentSpaces, *, seed: int = 0) -> None:
        """Prepares the network. `load_policy` calls this for the files of a run.

        Args:
            saved: The policy. The constructor imports the policy's network.
            spaces: The policy's spaces, by substep key.
            seed: Seeds the sampling of actions.

        Raises:
            ProtocolMismatchError: The weights do not fit the spaces.
        """
        self.saved, self.spaces = saved, spaces
        self._policy = make_saved_policy(saved, spaces, seed=seed, allowed_network=saved.spec.network)
        # By substep key; none before the first call, and for a policy that is not recurrent.
        self._states: dict[str, RecurrentState] = {}
        # The same of the frames that it sees at once.
        self._stacks: dict[str, FrameStacks] = {}
        self._executed = {key: ExecutedActions(substep.action) for key, substep in spaces.items()}

    def seed(self, seed: int) -> None:
        """Seeds the sampling of actions. The same seed and observations give the same actions."""
        self._policy.seed(seed)

    def reset(self, ended: Sequence[bool] | NDArray[np.bool_] | None = None) -> None:
        """Clears the recurrent state and the frames, for new episodes. Has no effect if the policy has neither.

        Args:
            ended: bool `[N]`: True for each environment of a batch whose episode begins with the next observation.
                None: all environments.

        Raises:
            InvalidInputError: `ended` has another length than the last batch of observations.
        """
        if ended is None:
            self._states.clear()
            self._stacks.clear()
            return
        rows = np.asarray(ended, np.bool_)
        carried: list[tuple[str, RecurrentState | FrameStacks]] = [*self._states.items(), *self._stacks.items()]
        for key, state in carried:
            if rows.shape != (len(state),):
                raise InvalidInputError(
                    f"ended has shape {list(rows.shape)}; expected [{len(state)}], the number of observations in the "
                    f"last act() of substep {key!r}; pass one flag for each, or None for all"
                )
            if isinstance(state, FrameStacks):
                state.begin(rows)
            else:
                state[rows] = 0.0

    def act(
        self, observation: NestedObservation, *, deterministic: bool = False, substep_key: str | None = None
    ) -> NDArray[Any]:
        """Chooses an action for an observation, or for each observation of a batch.

        Args:
            observation: An observation from `env.reset` or `env.step`, or a batch from a vector environment, each leaf
                `[N, ...]`.
            deterministic: Takes the greedy action instead of a sample.
            substep_key: The substep to act in; None: the only substep.

        Returns:
            The action for `env.step`: inside the bounds of a Box, a number for a Discrete space. For a batch, a fresh
            array `[N, ...]`.

        Raises:
            InvalidTensorError: The observation does not fit the space, or holds NaN or a value outside of the space.
            InvalidInputError: There is no such substep, or there are several and you name none. Or the number of
                observations changed without `reset`, and the policy is recurrent or stacks frames.
        """
        key = self._substep(substep_key)
        leaves, is_single = _batch(self.spaces[key].observation, observation)
        n = len(next(iter(leaves.values())))
        state, stacks = self._state(key, n), self._stacks_of(key, n)
        seen = leaves if stacks is None else stacks.push(leaves)
        action, _ = self._policy.act(seen, deterministic=deterministic, substep_key=key, state=state)
        executed = self._executed[key](action)
        chosen: NDArray[Any] = executed[0] if is_single else executed
        return chosen

    def _state(self, key: str, n: int) -> RecurrentState | None:
        state = self._states.get(key)
        if state is None:
            state = self._policy.initial_state(n)
            if state is not None:
                self._states[key] = state
        else:
            _check_as_many(n, len(state))
        return state

    def _stacks_of(self, key: str, n: int) -> FrameStacks | None:
        stacks = self._stacks.get(key)
        if stacks is None:
            stacks = self._policy.frame_stacks(n)
            if stacks is not None:
                self._stacks[key] = stacks
        else:
            _check_as_many(n, len(stacks))
        return stacks

    def _substep(self, key: str | None) -> str:
        if key is None and len(self.spaces) == 1:
            return next(iter(self.spaces))
        if key is None or key not in self.spaces:
            raise InvalidInputError(
                f"substep_key is {key!r}; expected one of {list(self.spaces)}, the substeps of this policy; correct it"
            )
        return key


def _check_as_many(n: int, n_before: int) -> None:
    if n != n_before:
        raise InvalidInputError(
            f"there are {n} observations, and there were {n_before} in the last act(); expected the same number, "
            "because this policy keeps a state for each; call reset() first, or load another policy"
        )


def _batch(space: Any, observation: NestedObservation) -> tuple[dict[str, NDArray[Any]], bool]:  # noqa: ANN401
    """Returns the leaves `[N, ...]` in the dtypes of their space, and whether the observation was a single one."""
    try:
        given = flatten_observation(space, observation)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidTensorError(
            f"the observation is a {type(observation).__name__} that cannot be flattened: {type(error).__name__}: "
            f"{error}; expected a value of {describe_space(space)}; pass an observation of the environment"
        ) from error
    leaves: dict[str, NDArray[Any]] = {}
    leading: tuple[int, ...] | None = None
    for path, leaf in space_leaves(space).items():
        schema, values, what = leaf_schema(leaf), given[path], f"the observation at {path!r}"
        n_leading = values.ndim - len(schema.shape)
        fits = n_leading in (0, 1) and values.shape[n_leading:] == schema.shape
        if not fits or 0 in values.shape[:n_leading]:
            raise InvalidTensorError(
                f"{what} has shape {list(values.shape)}; expected {list(schema.shape)}, or a batch of at least one; "
                "pass an observation of the environment"
            )
        if leading not in (None, values.shape[:n_leading]):
            raise InvalidTensorError(
                f"{what} has shape {list(values.shape)}, and an earlier leaf has {list(leading or ())} rows; expected "
                "the same number of rows for all leaves"
            )
        leading = values.shape[:n_leading]
        if not np.can_cast(values.dtype, schema.dtype, "same_kind"):
            raise InvalidTensorError(f"{what} is {values.dtype}; expected {schema.dtype}; convert it")
        rows = np.ascontiguousarray(values if n_leading else values[None], schema.dtype)
        schema.check_values(rows, what=what, axes=("n",))
        leaves[path] = rows
    return leaves, leading == ()
