"""The base of PPO and APPO: actor-critics that learn from each batch several times with PPO's clipped loss."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from rollcast.actor.policies.torch_distributions import log_prob_and_entropy
from rollcast.learner.algorithms.actor_critic import ActorCritic, LossTerms
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.clipped_surrogate_settings import (
    ClippedSurrogateSettings,
    check_minibatch_steps,
    default_minibatch_steps,
    items_in_minibatch,
)
from rollcast.learner.algorithms.minibatches import Memory, Steps
from rollcast.learner.algorithms.one_substep import columns_of
from rollcast.learner.algorithms.ppo_loss import ppo_loss
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.learner.algorithms.trajectories import (
    explained_variance,
    normalized,
    observations_to_value,
    sequence_starts,
    shares_of_steps,
)
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

OwnSettings = TypeVar("OwnSettings", bound=ClippedSurrogateSettings)

# The passes end when the policy is this many times `target_kl` away, as in the code of OpenAI's Spinning Up.
_KL_MARGIN = 1.5


class Estimates(NamedTuple):
    """The constants of an update, computed once before the first pass; each float32 `[T, B]`.

    Attributes:
        log_prob: log-probabilities of the actions under the policy that the surrogate's ratio is to.
        value: The critic's values.
        advantage: The advantages.
        target: The targets of the critic.
        metrics: Further metrics of the update, by name.
    """

    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    metrics: Metrics


class ClippedSurrogate(ActorCritic[OwnSettings]):
    """Base of an algorithm that passes over each batch several times, in minibatches drawn anew for each pass.

    `ppo_loss` is what each step of the optimiser minimises. A subclass computes advantages and targets in `_estimates`.
    """

    # Importance weights above it move nothing.
    _max_ratio: ClassVar[float] = math.inf

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: OwnSettings, seed: int) -> None:
        super()._build(spaces, spec, settings, seed)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._ends_early: Callable[[], bool] = lambda: False

    @abstractmethod
    def _estimates(
        self, batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor], n_env_steps: Tensor | float
    ) -> Estimates:
        """Computes what an update needs before its first pass; called without gradients, once a batch.

        Args:
            batch: Trajectories `[T, B, ...]`.
            columns: Its columns.
            rows: Its observations, those of `observations_to_value`, as networks see them.
            n_env_steps: The number of its transitions.
        """

    def why_not_captured(self) -> str | None:
        """Returns why updates cannot be captured: with a target KL, the host decides after each pass."""
        if self._settings.target_kl is not None:
            return f"--{self.name}.target-kl makes the host wait for the divergence after each pass"
        return super().why_not_captured()

    def end_updates_early(self, when: Callable[[], bool]) -> None:
        """Ends updates after a minibatch once `when` says so; see `Algorithm.end_updates_early`."""
        self._ends_early = when

    def _compute(self, batch: Batch, numbers: Numbers) -> Outputs:
        target_kl = self._settings.target_kl
        steps, of_estimates = self._prepare(batch, numbers["n_env_steps"])
        total: Tensor | float = 0.0
        n_epochs = 0.0
        n_items = steps.n_items
        size = self._items_in_minibatch(n_items, len(steps.valid) // n_items)
        n_minibatches = n_items / size  # of a pass; a smaller last one counts by its share
        while n_epochs < self._settings.n_epochs:
            of_pass = [self._step(steps.at(index), numbers) for index in self._minibatches(n_items, size)]
            is_whole = len(of_pass) >= n_minibatches
            if n_items % size and is_whole:
                of_pass[-1] = of_pass[-1] * (n_items % size / size)
            of_epoch = 1.0 if is_whole else len(of_pass) / n_minibatches
            sums = torch.stack(of_pass).sum(dim=0)
            total, n_epochs = total + sums, n_epochs + of_epoch
            if self._ends_early():
                break
            # waits for the device, so only if it is asked for
            if target_kl is not None and float(sums[-2]) > _KL_MARGIN * target_kl * n_minibatches:
                break
        assert isinstance(total, Tensor)  # there is at least one pass
        *terms, _, clip_fraction = (total / (n_epochs * n_minibatches)).unbind()
        return {
            **LossTerms(*terms)._asdict(),
            "reward_factor": self._reward_factor(),
            # of the last pass, as Stable-Baselines3 reports it: the first begin at 0
            "approx_kl": sums[-2] / (of_epoch * n_minibatches),
            "clip_fraction": clip_fraction,
            **of_estimates,
            "explained_variance": explained_variance(
                steps.value, steps.target, shares_of_steps(batch, numbers["n_env_steps"]).flatten()
            ),
            "epochs": n_epochs,
        }

    @torch.no_grad()
    def _prepare(self, batch: Batch, n_env_steps: Tensor | float) -> tuple[Steps, Metrics]:
        """Computes the estimates, and flattens the batch into steps; returns these, and the estimates' metrics."""
        settings, columns = self._settings, columns_of(batch, self._substep_key)
        n_steps = batch.reward.numel()
        check_minibatch_steps(settings.minibatch_steps, n_steps, algorithm=self.name)
        rows = self._policy.normalized(observations_to_value(batch, columns), self._substep_key)
        estimates = self._estimates(batch, columns, rows, n_env_steps)
        state = columns.initial_state
        steps = Steps(
            observation={path: leaf[:n_steps] for path, leaf in rows.items()},
            action=columns.action.flatten(0, 1),
            log_prob=estimates.log_prob.flatten(),
            value=estimates.value.flatten(),
            advantage=estimates.advantage.flatten(),
            target=estimates.target.flatten(),
            valid=batch.valid.flatten().to(torch.float32),
            memory=None if state is None else Memory(state, sequence_starts(batch)),
        )
        return steps, estimates.metrics

    def _minibatches(self, n_items: int, size: int) -> Iterator[Tensor]:
        """Yields the indices of the minibatches of one pass, fewer if it ends early; the last has what is left.

        Args:
            n_items: The steps of the batch, or its trajectories.
            size: Those of a minibatch.
        """
        order = torch.randperm(n_items, generator=self._generator, device=self._device)
        for start in range(0, n_items, size):
            if start and self._ends_early():
                return
            yield order[start : start + size]

    def _items_in_minibatch(self, n_items: int, steps_of_item: int) -> int:
        settings = self._settings
        n_steps = settings.minibatch_steps
        if n_steps is not None:
            return items_in_minibatch(n_steps, steps_of_item, algorithm=self.name)
        n_steps = default_minibatch_steps(
            n_items * steps_of_item, n_epochs=settings.n_epochs, recurrent=steps_of_item > 1
        )
        return max(1, n_steps // steps_of_item)

    def _step(self, steps: Steps, numbers: Numbers) -> Tensor:
        """Makes one step of the optimiser; returns the `LossTerms`, the KL estimate and the clip fraction, `[7]`."""
        settings = self._settings
        count = steps.valid.sum()
        weight = steps.valid / count.clamp(min=1.0)
        advantage = steps.advantage
        if settings.normalize_advantages:
            advantage = normalized(advantage, weight, count=count, reduction=self._reduction)
        if steps.memory is None:
            parameters, value = self._of_observations(steps.observation, len(steps.valid))
        else:
            parameters, value, _ = self._unroll(steps.observation, *steps.memory)
        log_prob, entropy = log_prob_and_entropy(self._action_space, parameters, steps.action)
        loss = ppo_loss(
            log_prob=log_prob,
            acted_log_prob=steps.log_prob,
            entropy=entropy,
            value=value,
            acted_value=steps.value,
            target=steps.target,
            advantage=advantage,
            weight=weight,
            clip_range=numbers["clip_range"],
            clip_range_value=settings.clip_range_value,
            value_cost=settings.value_cost,
            entropy_cost=numbers["entropy_cost"],
            max_ratio=self._max_ratio,
        )
        terms, others = self._descend(
            loss.total,
            policy=loss.policy,
            value=loss.value,
            entropy=loss.entropy,
            count=count,
            learning_rate=numbers["learning_rate"],
            others=(loss.approx_kl, loss.clip_fraction),
        )
        return torch.stack([*terms, *others])

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        return {**super()._checkpoint_parts(), "generator": self._generator}
