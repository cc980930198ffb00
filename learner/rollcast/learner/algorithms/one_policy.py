"""The base class of rollcast's algorithms that learn one policy for one substep."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from rollcast.actor.policies.torch_observation_moments import RunningMoments
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Algorithm, Metrics, check_learns
from rollcast.learner.algorithms.descent import Descent, make_capturable
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.policy_snapshot import PolicySnapshot
from rollcast.learner.algorithms.training_state import (
    StatePart,
    load_module,
    load_parts,
    read_training_state,
    write_parts,
)
from rollcast.learner.batch import Batch
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.devices.work import AT_ONCE, DeviceWork, Work
from rollcast.learner.ranks.reduction import ALONE, GradientReduction
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import BUILT_IN_NETWORKS, PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces

Settings = TypeVar("Settings", bound=BaseModel)

# The name of the batch's priorities among the outputs of an update.
PRIORITIES: Final = "priorities"


class OnePolicy(Algorithm, Generic[Settings]):
    """The base class of algorithms that learn the policy of one substep and detect divergence.

    A subclass makes its parts in `_build`, and passes the device's part of an update to `_run`.
    """

    # The name in settings, metrics and checkpoints.
    name: ClassVar[str]
    # The settings that define its critics, with the values for checkpoints that lack them.
    critic_settings: ClassVar[Mapping[str, Any]] = {}
    # The name of the critics in messages.
    critics: ClassVar[Literal["critic", "critics"]] = "critic"

    # Made by `_build`. The parts are what a checkpoint has, by name: `policy` is the policy, or only its networks;
    # `normalization` then has its running mean and variance.
    _policy: TorchPolicy
    _watch: DivergenceWatch
    _parts: Mapping[str, StatePart]
    _priorities: Tensor | None = None
    _work: DeviceWork = AT_ONCE
    _reduction: GradientReduction = ALONE

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        settings: Settings,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Makes the networks and the optimisers.

        Args:
            spaces: The environment's spaces by substep key; exactly one.
            spec: The architecture of the policy and of any critics.
            settings: The algorithm's settings.
            device: Device of the networks and of all batches.
            seed: Seed of the initial parameters and of the noise. The global generators are unchanged.

        Raises:
            ConfigurationError: If there is not exactly one substep, or its actions are of another kind. If the spec has
                another head, or a recurrence or frame stack that the algorithm cannot learn. If no network fits the
                spaces.
            InvalidSpaceError: If the algorithm does not support the action space.
        """
        check_learns(self, spec, f"--algorithm {self.name}")
        self._settings = settings
        self._device = torch.device(device)
        self._copier = make_copier(self._device)
        self._substep_key = only_substep(spaces, algorithm=self.name.upper())
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which seeds the generators of all devices. Networks are made on the CPU.
            torch.default_generator.manual_seed(seed)
            self._build(spaces, spec, settings, seed)

    @abstractmethod
    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: Settings, seed: int) -> None:
        """Makes networks, optimisers and schedules, after the global generator is seeded."""

    @property
    def policy(self) -> TorchPolicy:
        """The policy in training; its parameters change with every update."""
        return self._policy

    def _run(self, work: Work, batch: Batch, numbers: Mapping[str, float], variant: Hashable = None) -> Metrics:
        """Runs the device's part of an update, stores its `PRIORITIES`, if any, and counts the update.

        Args:
            work: Makes the optimiser steps for a batch; see `Work`.
            batch: The batch.
            numbers: The host's numbers for this update.
            variant: See `DeviceWork.run`.

        Returns:
            The other outputs of the work.

        Raises:
            RollcastError: If training diverged.
        """
        outputs = dict(self._work.run(work, batch, numbers, variant))
        priorities = outputs.pop(PRIORITIES, None)
        assert not isinstance(priorities, float)
        self._priorities = priorities
        self._watch.end_update()
        self._n_updates += 1
        return outputs

    @property
    def priorities(self) -> Tensor | None:
        """The absolute TD errors of the last batch; see `Algorithm.priorities`."""
        return self._priorities

    def why_not_captured(self) -> str | None:
        """Returns the reason why updates cannot be captured; see `Algorithm.why_not_captured`."""
        if self._policy.spec.network not in BUILT_IN_NETWORKS:
            return f"the network {self._policy.spec.network!r} may compute on the host, which a graph does not repeat"
        return None

    def capture_updates(self, make_work: Callable[[Sequence[torch.Generator]], DeviceWork]) -> None:
        """Runs the device's part of updates as `DeviceWork`; see `Algorithm.capture_updates`."""
        parts = self._checkpoint_parts().values()
        optimizers = (part.optimizer if isinstance(part, Descent) else part for part in parts)
        for optimizer in optimizers:
            if isinstance(optimizer, torch.optim.Optimizer) and self._device.type != "cpu":
                make_capturable(optimizer)
        self._work = make_work([part for part in parts if isinstance(part, torch.Generator)])

    def take_replayed(self) -> tuple[int, int]:
        """Returns the number of replayed parts of updates; see `Algorithm.take_replayed`."""
        return self._work.take_replayed()

    def join_ranks(self, reduction: GradientReduction) -> None:
        """Learns together with other ranks from now on; see `Algorithm.join_ranks`."""
        self._reduction = reduction
        self._work = AT_ONCE  # a graph cannot wait for other ranks
        for part in self._checkpoint_parts().values():
            if isinstance(part, nn.Module):
                reduction.equal(part.state_dict().values())
                for module in part.modules():
                    if isinstance(module, RunningMoments):
                        reduction.keep_apart(module)
            elif isinstance(part, torch.Generator) and reduction.rank:
                # Each rank has its own noise, new after each start: only rank 0's generator is in a checkpoint.
                seeds = np.random.SeedSequence((part.initial_seed(), reduction.rank, self._n_updates))
                part.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))

    def share_observations(self) -> None:
        """Merges the observations of all ranks into the policy's; see `Algorithm.share_observations`."""
        for moments in self._policy.normalization.values():
            assert isinstance(moments, RunningMoments)
            self._reduction.share(moments)

    def policy_state(self) -> PolicyState:
        """Returns a snapshot of the policy's arrays; see `Algorithm.policy_state`.

        Does not wait for the device. Reading the arrays waits, and raises if training has diverged.
        """
        if self._device.type == "cpu":
            self._watch.check()
        return PolicySnapshot(
            self._policy,
            self._copier,
            published=self._policy.published,
            watched=self._watch.record,
            check=self._watch.check_record,
        )

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy, and the other networks if the other run used this algorithm; see `Algorithm.begin_with`."""
        arrays, values = ({}, {}) if checkpoint is None else read_training_state(checkpoint)
        is_ours = values.get("algorithm") == self.name
        if checkpoint is not None and is_ours:
            self._check_critics(values.get("settings", {}), checkpoint)
        super().begin_with(state, checkpoint)
        if checkpoint is None or not is_ours:
            return False
        for name, part in self._checkpoint_parts().items():
            if isinstance(part, nn.Module) and name not in ("policy", "normalization"):
                load_module(part, name, arrays, source=checkpoint)
        return True

    def _check_critics(self, saved: Mapping[str, Any], source: Path) -> None:
        """Refuses critics of this algorithm that were learnt with other settings; `saved` has those, by name."""
        for name, lacking in self.critic_settings.items():
            theirs, own = saved.get(name, lacking), getattr(self._settings, name)
            if theirs != own:
                whose = "the critic of " if self.critics == "critic" else ""
                raise ConfigurationError(
                    f"--initial-policy: {whose}{source} was learnt with {name} {theirs}; expected {own}, as in this "
                    f"run; set --{self.name}.{name.replace('_', '-')} to that value, or give a policy file, "
                    f"which has no {self.critics}"
                )

    def save(self, directory: Path) -> None:
        """Writes the parts, the settings and the number of updates; see `Algorithm.save`."""
        self._watch.check()
        values = {
            "n_updates": self._n_updates,
            "settings": self._settings.model_dump(mode="json"),
            **self._checkpoint_values(),
        }
        write_parts(directory, self._checkpoint_parts(), {"algorithm": self.name, **values})

    def load(self, directory: Path) -> None:
        """Loads a checkpoint from `save`, except the settings; see `Algorithm.load`."""
        arrays, values = self._read_checkpoint(directory)
        self._load_checkpoint_values(values, directory)
        load_parts(self._checkpoint_parts(), arrays, source=directory)
        self._n_updates = int(values["n_updates"])
        self._priorities = None
        self._watch.clear()
        self._work.forget()

    def _checkpoint_name(self) -> str:
        return self.name

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        return self._parts

    def _checkpoint_values(self) -> Mapping[str, Any]:
        """Returns further values for a checkpoint."""
        return {}

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        """Loads the result of `_checkpoint_values`."""


def only_substep(spaces: EnvironmentSpaces, *, algorithm: str) -> str:
    """Returns the key of an environment's only substep.

    Args:
        spaces: The environment's spaces by substep key.
        algorithm: The algorithm's name, for the message.

    Raises:
        ConfigurationError: If there is not exactly one substep.
    """
    if len(spaces) != 1:
        raise ConfigurationError(
            f"The environment has {len(spaces)} substeps {sorted(spaces)}; {algorithm} supports exactly 1. Give each "
            "substep its own learner, with IndependentLearners."
        )
    return next(iter(spaces))
