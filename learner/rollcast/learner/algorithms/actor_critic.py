"""The base of the algorithms that learn a policy and a critic from trajectories."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rollcast.actor.policies.torch_distributions import log_prob_and_entropy
from rollcast.actor.policies.torch_observation_moments import RunningMoments
from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.critics import RecurrentValueCritic, TorsoValueCritic, ValueCritic
from rollcast.learner.algorithms.descent import Descent, MakeOptimizer
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.algorithms.optimizers import adam
from rollcast.learner.algorithms.reward_normalizer import RewardNormalizer
from rollcast.learner.algorithms.training_state import StatePart, read_training_state
from rollcast.learner.algorithms.trajectories import (
    observations_to_value,
    sequence_starts,
    shaped_rewards,
    states_before_ends,
)
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces

OwnSettings = TypeVar("OwnSettings", bound=ActorCriticSettings)


class LossTerms(NamedTuple):
    """The report of one step of the optimiser; each quantity is 0-dim, without graph."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    policy_grad_norm: Tensor
    critic_grad_norm: Tensor


class Forward(NamedTuple):
    """The outputs of both networks for a batch, with their graphs.

    Attributes:
        log_prob: float32 `[T * B]`, of the actions that were taken.
        entropy: float32 `[T * B]`, in nats.
        values: float32 `[(T + 1) * B + N]`, of all rows, the last observations and the N final observations.
    """

    log_prob: Tensor
    entropy: Tensor
    values: Tensor


class ActorCritic(OnePolicy[OwnSettings]):
    """Base of an algorithm that follows the policy's gradient, with a critic's values as the baseline.

    Policy and critic share no parameter, or the policy's torso of images; only the policy is sent to actors. Their
    parameters are one vector, with one optimiser.
    """

    learns_recurrent_policies = True
    learns_frame_stacks = True

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: OwnSettings, seed: int) -> None:
        self._action_space = spaces[self._substep_key].action
        self._policy = TorchPolicy(spaces, spec).to(self._device)
        self._policy.set_std(settings.initial_std)
        critic = TorsoValueCritic if settings.share_torso else RecurrentValueCritic if spec.state_size else ValueCritic
        self._critic = critic(spaces, spec, substep_key=self._substep_key).to(self._device)
        self._descent = Descent(
            {"policy": self._policy, "critic": self._critic},
            self._optimizer(settings),
            max_grad_norm=settings.max_grad_norm,
        )
        self._scheduled = settings.schedules()
        self._rewards = RewardNormalizer(settings.discount).to(self._device) if settings.normalize_rewards else None
        self._watch = DivergenceWatch(
            ("policy loss", "value loss", "entropy", "policy's gradient norm", "critic's gradient norm"),
            device=self._device,
            advice=f"Lower the learning rate ({settings.learning_rate:g}) or max_grad_norm "
            f"({settings.max_grad_norm:g}), or scale rewards and observations down.",
        )

    def _optimizer(self, settings: OwnSettings) -> MakeOptimizer:
        return adam(
            settings.learning_rate,
            beta1=settings.adam_beta1,
            beta2=settings.adam_beta2,
            epsilon=settings.optimizer_epsilon,
        )

    def _forward(self, batch: Batch, columns: BatchColumns) -> Forward:
        """Runs both networks on a batch: on its T * B rows, and the critic also on what follows them."""
        rows = self._policy.normalized(observations_to_value(batch, columns), self._substep_key)
        return self._outputs(batch, columns, rows)

    def _outputs(self, batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor]) -> Forward:
        """Runs both networks on the observations of `observations_to_value`, normalised."""
        n_rows, action = batch.reward.numel(), columns.action.flatten(0, 1)
        if columns.initial_state is None:
            parameters, values = self._of_observations(rows, n_rows)
        else:
            observation = {path: leaf[:n_rows] for path, leaf in rows.items()}
            parameters, values, states = self._unroll(observation, columns.initial_state, sequence_starts(batch))
            with torch.no_grad():
                ends = {path: leaf[n_rows:] for path, leaf in rows.items()}
                before = states_before_ends(batch, states)
                _, after = self._policy.step(ends, before, self._substep_key, is_normalized=True)
                of_ends = self._critic(ends, after)
            values = torch.cat([values, of_ends])
        return Forward(*log_prob_and_entropy(self._action_space, parameters, action), values)

    def _of_observations(self, rows: Mapping[str, Tensor], n_rows: int) -> tuple[Tensor, Tensor]:
        """Runs a policy without a memory, and its critic.

        Args:
            rows: `[N, ...]` for every leaf, normalised.
            n_rows: The first so many are those of the policy.

        Returns:
            The policy's parameters, `[n_rows, P]`; and the values, `[N]`.
        """
        observation = {path: leaf[:n_rows] for path, leaf in rows.items()}
        if not self._settings.share_torso:
            parameters = self._policy.parameters_of(observation, self._substep_key, is_normalized=True)
            return parameters, self._critic(rows)
        features = self._policy.features_of(rows, self._substep_key)
        parameters = self._policy.parameters_of(
            observation, self._substep_key, is_normalized=True, features=features[:n_rows]
        )
        return parameters, self._critic(features)

    def _values(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Returns the values of observations `[N, ...]`, normalised, float32 `[N]`, without a memory."""
        seen = self._policy.features_of(rows, self._substep_key) if self._settings.share_torso else rows
        values: Tensor = self._critic(seen)
        return values

    def _unroll(
        self, observation: Mapping[str, Tensor], initial_state: Tensor, starts: SequenceStarts
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Runs a recurrent policy and its critic.

        Args:
            observation: `[T * B, ...]` for every leaf, normalised.
            initial_state: float32 `[B, S]`.
            starts: The rows where the state does not follow from the row before.

        Returns:
            The policy's parameters, `[T * B, P]`; the values, `[T * B]`; and the states after each row, `[T, B, S]`.
        """
        parameters, states = self._policy.unroll(
            observation, initial_state, starts, self._substep_key, is_normalized=True
        )
        return parameters, self._critic(observation, states.flatten(0, 1)), states

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch; see `Algorithm.update`."""
        schedules = {name: value_at(progress) for name, value_at in self._scheduled.items()}
        numbers = {**schedules, "n_env_steps": batch.n_env_steps}
        outputs = self._work.run(self._compute, batch, numbers)
        self._watch.end_update()
        self._n_updates += 1
        return {**outputs, **schedules}

    @abstractmethod
    def _compute(self, batch: Batch, numbers: Numbers) -> Outputs:
        """Makes the optimiser's steps for a batch; returns the metrics. See `Work`.

        Args:
            batch: Trajectories `[T, B, ...]`.
            numbers: The values of the settings' `schedules`, and `n_env_steps`.
        """

    def _shaped_rewards(self, batch: Batch, n_env_steps: Tensor | float) -> Tensor:
        """Returns the rewards to learn from, float32 `[T, B]`.

        With `normalize_rewards`, those of the batch enter the moments first: call it once for each batch.

        Args:
            batch: Trajectories `[T, B, ...]`.
            n_env_steps: The number of their transitions.
        """
        clip, scale = self._settings.reward_clip, self._settings.reward_scale
        if self._rewards is None:
            return shaped_rewards(batch.reward, clip, scale)
        clipped = shaped_rewards(batch.reward, clip, 1.0)
        self._rewards.observe(clipped, batch, n_env_steps)
        self._reduction.share(self._rewards.returns)
        return self._rewards.normalize(clipped) * scale

    def _reward_factor(self) -> Tensor | float:
        """Returns the factor of clipped rewards in the last update, for the report."""
        scale = self._settings.reward_scale
        return scale if self._rewards is None else self._rewards.factor() * scale

    def _descend(
        self,
        total: Tensor,
        *,
        policy: Tensor,
        value: Tensor,
        entropy: Tensor,
        count: Tensor | float,
        learning_rate: Tensor | float,
        others: Sequence[Tensor] = (),
    ) -> tuple[LossTerms, Sequence[Tensor]]:
        """Makes a step of the optimiser down the total loss.

        Args:
            total: The loss, with its graph.
            policy: The policy's term of it, for the report.
            value: The critic's term, for the report.
            entropy: The mean entropy in nats, for the report.
            count: The number of steps that the loss is the mean of.
            learning_rate: That of this step.
            others: Further means over these steps, 0-dim, for the report.

        Returns:
            The terms, and the others, as means over all ranks.

        Raises:
            RollcastError: If training diverged; the parameters are as before.
        """
        own = (policy.detach(), value.detach(), entropy.detach(), *others)
        (policy, value, entropy, *others), norms = self._descent.backward(
            [total], own, count=count, reduction=self._reduction
        )
        terms = LossTerms(policy, value, entropy, *norms)
        self._watch.observe(*terms)
        self._descent.step(learning_rate)
        return terms, others

    def _moments(self) -> list[RunningMoments]:
        return super()._moments() + ([] if self._rewards is None else [self._rewards.returns])

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        parts: dict[str, StatePart] = {
            "policy": self._policy,
            "critic": self._critic,
            "optimizer": self._descent,
        }
        return parts if self._rewards is None else {**parts, "rewards": self._rewards}

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads policy and critic; see `Algorithm.begin_with`. The critic of other rewards is refused."""
        values = {} if checkpoint is None else read_training_state(checkpoint)[1]
        for name in ("normalize_rewards", "share_torso") if values.get("algorithm") == self.name else ():
            theirs, own = values.get("settings", {}).get(name, False), getattr(self._settings, name)
            if theirs != own:
                raise ConfigurationError(
                    f"--initial-policy: the critic of {checkpoint} was learnt with {name} {theirs}; expected {own}, as "
                    f"of this run; set --{self.name}.{name.replace('_', '-')} to that, or give the file of the policy, "
                    "which has no critic"
                )
        return super().begin_with(state, checkpoint)
