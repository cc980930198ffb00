"""Loads a custom algorithm, `--algorithm package.module:factory`, and checks its results."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rollcast.actor.entry_points import load_entry_point
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Algorithm, Metrics, check_learns
from rollcast.learner.batch import Batch
from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces


class AlgorithmFactory(Protocol):
    """A callable that makes an algorithm, usually the algorithm's class.

    If its attribute `learns_from_replay` is True, the learner makes a replay buffer.
    """

    def __call__(
        self, spaces: EnvironmentSpaces, spec: PolicySpec, *, device: torch.device, seed: int, **kwargs: object
    ) -> Algorithm:
        """Makes the algorithm.

        Args:
            spaces: The spaces of one substep, by the substep's key.
            spec: The architecture from the settings; the policy may have another head.
            device: Device of all batches.
            seed: The seed of all random numbers.
            kwargs: `--algorithm-kwargs`.
        """


def make_own_algorithm(
    name: str,
    spaces: EnvironmentSpaces,
    spec: PolicySpec,
    kwargs: Mapping[str, Any],
    *,
    device: torch.device,
    seed: int,
) -> Algorithm:
    """Makes a custom algorithm and checks that it is an `Algorithm` for these spaces.

    Args:
        name: `package.module:factory`.
        spaces: The spaces of one substep, by the substep's key.
        spec: The architecture from the settings.
        kwargs: Further keyword arguments for the factory.
        device: Device of all batches.
        seed: The seed of all random numbers.

    Raises:
        ConfigurationError: If the factory does not exist, raises, or makes no algorithm for these spaces.
    """
    factory: AlgorithmFactory = load_entry_point(name)
    try:
        made: object = factory(spaces, spec, device=device, seed=seed, **kwargs)
    except RollcastError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"--algorithm {name!r} cannot be made with algorithm_kwargs {dict(kwargs)!r}: {type(error).__name__}: "
            f"{error}; expected an Algorithm; correct --algorithm-kwargs, or the factory, which is called as "
            "factory(spaces, spec, device=..., seed=..., **algorithm_kwargs)"
        ) from error
    if not isinstance(made, Algorithm):
        raise ConfigurationError(
            f"--algorithm {name!r} made a {type(made).__name__}; expected an `Algorithm` of "
            "rollcast.learner.algorithms.algorithm; return a subclass of it"
        )
    check_learns(made, spec, f"--algorithm {name!r}")
    policy: object = made.policy
    if not isinstance(policy, TorchPolicy) or list(policy.spaces) != list(spaces):
        raise ConfigurationError(
            f"the policy of --algorithm {name!r} is a {type(policy).__name__}; expected a TorchPolicy of the spaces it "
            f"was given, of the substep {next(iter(spaces))!r}; make it as TorchPolicy(spaces, spec)"
        )
    if policy.spec.network != spec.network:
        raise ConfigurationError(
            f"the policy of --algorithm {name!r} has the network {policy.spec.network!r}; expected {spec.network!r}, "
            "with which actors are started; make the policy with the given spec"
        )
    found, expected = ((s.normalize_observations, s.observation_clip) for s in (policy.spec, spec))
    if found != expected:
        raise ConfigurationError(
            f"the policy of --algorithm {name!r} has (normalize_observations, observation_clip) {found}; expected "
            f"{expected}, as in the settings; make the policy with the given spec"
        )
    if policy.spec.frame_stack != spec.frame_stack:
        raise ConfigurationError(
            f"the policy of --algorithm {name!r} has the frame_stack {policy.spec.frame_stack}; expected "
            f"{spec.frame_stack}, as in the settings; make the policy with the given spec"
        )
    return OwnAlgorithm(name, made)


class OwnAlgorithm(Algorithm):
    """A wrapper around a custom algorithm that checks all its results.

    Args:
        name: The factory's name, for messages.
        algorithm: The algorithm.
    """

    def __init__(self, name: str, algorithm: Algorithm) -> None:
        self._name = name
        self._algorithm = algorithm
        self._unchecked: Metrics = {}
        self.learns_from_replay, self.on_policy = algorithm.learns_from_replay, algorithm.on_policy
        self.replay_entry = algorithm.replay_entry
        self.learns_recurrent_policies = algorithm.learns_recurrent_policies
        self.learns_frame_stacks = algorithm.learns_frame_stacks

    @property
    def policy(self) -> TorchPolicy:
        """The policy in training; see `Algorithm.policy`."""
        return self._algorithm.policy

    @property
    def n_updates(self) -> int:
        """The number of updates so far; see `Algorithm.n_updates`."""
        return self._algorithm.n_updates

    @property
    def priorities(self) -> Tensor | None:
        """The priorities of the last batch; see `Algorithm.priorities`."""
        return self._algorithm.priorities

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch; see `Algorithm.update`.

        Raises:
            RollcastError: If the algorithm returned no metrics or non-finite metrics, or did not count the update.
        """
        before = self._algorithm.n_updates
        metrics: object = self._algorithm.update(batch, progress=progress)
        if not isinstance(metrics, Mapping):
            raise self._broken(
                f"update() returned a {type(metrics).__name__}", "a mapping of names to numbers", "return {} for none"
            )
        if self._algorithm.n_updates != before + 1:
            raise self._broken(
                f"update() left n_updates at {self._algorithm.n_updates}",
                f"{before + 1}",
                "add `self._n_updates += 1` to update()",
            )
        # reading a number of another device waits for it, so `policy_state` checks those
        self._unchecked = {name: value for name, value in metrics.items() if not self._is_checked(name, value)}
        return metrics

    def policy_state(self) -> PolicyState:
        """Returns the policy's arrays; see `Algorithm.policy_state`.

        Raises:
            RollcastError: If an array, or a metric of the last update, is not finite.
        """
        for name, value in self._unchecked.items():
            self._check(name, float(value))
        state = self._algorithm.policy_state()
        for name, array in state.items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                raise self._broken(
                    f"training diverged: the policy's {name!r} is not finite",
                    "numbers",
                    "lower the learning rate, or clip gradients",
                )
        policy = self._algorithm.policy
        return (
            {name: policy.published(name, array) for name, array in state.items()} if policy.rounds_weights else state
        )

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the weights of another run; see `Algorithm.begin_with`."""
        return self._algorithm.begin_with(state, checkpoint)

    def end_updates_early(self, when: Callable[[], bool]) -> None:
        """Makes updates end early; see `Algorithm.end_updates_early`."""
        self._algorithm.end_updates_early(when)

    def join_ranks(self, reduction: GradientReduction) -> None:
        """Learns together with other ranks from now on; see `Algorithm.join_ranks`."""
        self._algorithm.join_ranks(reduction)

    def share_observations(self) -> None:
        """Merges the observations of all ranks; see `Algorithm.share_observations`."""
        self._algorithm.share_observations()

    def save(self, directory: Path) -> None:
        """Writes the algorithm's state; see `Algorithm.save`."""
        self._algorithm.save(directory)

    def load(self, directory: Path) -> None:
        """Loads a checkpoint from `save`; see `Algorithm.load`."""
        self._algorithm.load(directory)
        self._unchecked = {}

    def _is_checked(self, name: str, value: object) -> bool:
        if isinstance(value, Tensor) and value.ndim == 0:
            if value.device.type != "cpu":
                return False
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
            raise self._broken(
                f"the metric {name!r} is a {type(value).__name__}", "a number or a 0-dim tensor", "correct it"
            )
        self._check(name, float(value))
        return True

    def _check(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            raise self._broken(
                f"training diverged: update() returned {value} as the metric {name!r}",
                "a finite number",
                "lower the learning rate, clip gradients, or leave the metric out",
            )

    def _broken(self, found: str, expected: str, advice: str) -> RollcastError:
        return RollcastError(f"--algorithm {self._name!r}: {found}; expected {expected}; {advice}")


def wants_replay(factory: Callable[..., Any]) -> bool:
    """Returns True if the algorithms of a factory learn from a replay buffer."""
    return bool(getattr(factory, "learns_from_replay", False))
