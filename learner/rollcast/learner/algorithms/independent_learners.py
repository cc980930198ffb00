"""Independent learners: one algorithm for each substep of an environment, without shared information.

Tan 1993, "Multi-Agent Reinforcement Learning: Independent vs. Cooperative Agents", ICML. The agents of one substep
share a policy; agents with separate policies have separate substeps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rollcast.actor.policies.exploration import without_exploration
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Algorithm, Metrics
from rollcast.learner.algorithms.policy_snapshot import MergedStates
from rollcast.learner.algorithms.training_state import read_training_state, write_training_state
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import DeviceWork
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces

_NAME = "independent learners"


class MakeLearner(Protocol):
    """Makes the learner of one substep."""

    def __call__(self, spaces: EnvironmentSpaces, *, seed: int) -> Algorithm:
        """Makes the learner.

        Args:
            spaces: The spaces of one substep, by its key.
            seed: The learner's seed.
        """


class IndependentLearners(Algorithm):
    """One algorithm of the same kind for each substep, behind one policy with the networks of all substeps.

    Invariant: the policy's networks are the learners' networks, and all policies share one `exploration`. A batch holds
    one substep, and only that substep's learner learns from it. `Algorithm` documents which thread may call which
    method.
    """

    def __init__(self, spaces: EnvironmentSpaces, make_learner: MakeLearner, *, seed: int = 0) -> None:
        """Makes the learners.

        Args:
            spaces: The environment's spaces by substep key.
            make_learner: Makes the learner of one substep. Its errors are not caught.
            seed: The seed from which the learners' seeds derive.

        Raises:
            ConfigurationError: If the policies need different heads.
        """
        seeds = np.random.SeedSequence(seed).spawn(len(spaces))
        self._learners = {
            key: make_learner({key: substep}, seed=int(own.generate_state(1)[0]))
            for (key, substep), own in zip(spaces.items(), seeds, strict=True)
        }
        self.learns_from_replay = any(learner.learns_from_replay for learner in self._learners.values())
        self.replay_entry = next(iter(self._learners.values())).replay_entry
        self.on_policy = any(learner.on_policy for learner in self._learners.values())
        self._policy = _joined(spaces, {key: learner.policy for key, learner in self._learners.items()})
        self._last: Algorithm | None = None

    @property
    def policy(self) -> TorchPolicy:
        """The policy of all substeps; its parameters change with every update."""
        return self._policy

    @property
    def n_updates(self) -> int:
        """The total number of updates of all learners."""
        return sum(learner.n_updates for learner in self._learners.values())

    @property
    def priorities(self) -> Tensor | None:
        """The priorities of the last batch; see `Algorithm.priorities`."""
        return None if self._last is None else self._last.priorities

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Updates the learner of the batch's substep; see `Algorithm.update`.

        Returns:
            That learner's metrics, as `KEY/name`.
        """
        learner = self._learners.get(next(iter(batch.substeps))) if len(batch.substeps) == 1 else None
        if learner is None:
            raise ConfigurationError(
                f"The batch holds the substeps {sorted(batch.substeps)}; expected exactly one of "
                f"{list(self._learners)}. Use batches of the environment that the algorithm was made for."
            )
        (key,) = batch.substeps
        metrics = learner.update(batch, progress=progress)
        self._last = learner
        return {f"{key}/{name}": value for name, value in metrics.items()}

    def why_not_captured(self) -> str | None:
        """Returns the reason why updates of a learner cannot be captured; see `Algorithm.why_not_captured`."""
        reasons = (learner.why_not_captured() for learner in self._learners.values())
        return next((reason for reason in reasons if reason is not None), None)

    def capture_updates(self, make_work: Callable[[Sequence[torch.Generator]], DeviceWork]) -> None:
        """Captures the device's part of each learner's updates; see `Algorithm.capture_updates`."""
        for learner in self._learners.values():
            learner.capture_updates(make_work)

    def take_replayed(self) -> tuple[int, int]:
        """Returns the number of replayed parts of all learners' updates; see `Algorithm.take_replayed`."""
        replayed, runs = zip(*(learner.take_replayed() for learner in self._learners.values()), strict=True)
        return sum(replayed), sum(runs)

    def end_updates_early(self, when: Callable[[], bool]) -> None:
        """Ends the updates of each learner early; see `Algorithm.end_updates_early`."""
        for learner in self._learners.values():
            learner.end_updates_early(when)

    def policy_state(self) -> PolicyState:
        """Returns a snapshot of the policy's arrays; see `Algorithm.policy_state`."""
        # from each learner, because each one first checks that it has not diverged
        states = [learner.policy_state() for learner in self._learners.values()]
        return MergedStates(states, self._policy.state_dict())

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Gives each learner its part of the policy; see `Algorithm.begin_with`."""
        self._policy.load_weights(without_exploration(state))
        is_ours = checkpoint is not None and _written_by(checkpoint) == (_NAME, list(self._learners))
        paths = dict(enumerate(self._paths(checkpoint))) if checkpoint is not None and is_ours else {}
        took = [
            learner.begin_with(
                {name: state[name] for name in learner.policy.state_dict() if name in state},
                paths[i][1] if i in paths else None,
            )
            for i, learner in enumerate(self._learners.values())
        ]
        return any(took)

    def save(self, directory: Path) -> None:
        """Writes each learner into a separate directory; see `Algorithm.save`."""
        write_training_state(directory, {}, {"algorithm": _NAME, "substeps": list(self._learners)})
        for learner, path in self._paths(directory):
            learner.save(path)

    def load(self, directory: Path) -> None:
        """Loads a checkpoint from `save`, except the settings; see `Algorithm.load`."""
        saved = _written_by(directory)
        if saved != (_NAME, list(self._learners)):
            raise ConfigurationError(
                f"{directory} was written by {saved[0]!r} for the substeps {saved[1]}; expected {_NAME!r} for "
                f"{list(self._learners)}. Resume with the environment of that run."
            )
        for learner, path in self._paths(directory):
            learner.load(path)
        self._last = None

    def _paths(self, directory: Path) -> Iterable[tuple[Algorithm, Path]]:
        # numbered, because a substep's key need not be a valid name of a directory
        return ((learner, directory / f"substep{i}") for i, learner in enumerate(self._learners.values()))


def _written_by(directory: Path) -> tuple[Any, Any]:
    """Returns the algorithm that wrote a checkpoint, and its substeps."""
    _, values = read_training_state(directory)
    return values.get("algorithm"), values.get("substeps")


def _joined(spaces: EnvironmentSpaces, policies: Mapping[str, TorchPolicy]) -> TorchPolicy:
    """Returns one policy with the modules and parameters of the policies of all substeps."""
    spec = _common_spec(policies)
    first = next(iter(policies.values()))
    with torch.random.fork_rng(devices=[]):
        joined = TorchPolicy(spaces, spec)
    joined.exploration = first.exploration
    for key, policy in policies.items():
        joined.networks[key] = policy.networks[key]
        if key in policy.normalization:
            joined.normalization[key] = policy.normalization[key]
        if key in policy.log_std:
            joined.log_std[key] = policy.log_std[key]
        policy.exploration = first.exploration
    return joined


def _common_spec(policies: Mapping[str, TorchPolicy]) -> PolicySpec:
    specs = {key: policy.spec for key, policy in policies.items()}
    first = next(iter(specs.values()))
    if any(spec != first for spec in specs.values()):
        raise ConfigurationError(
            f"the substeps need policies with different heads: { ({key: spec.head for key, spec in specs.items()}) }; "
            "expected one head, because all substeps share one policy; use IMPALA, which has one head for all action "
            "spaces, or wrap the environment so that its action spaces are of one kind"
        )
    return first
