"""The networks of an actor-critic: a policy, and a critic whose values are the baseline of the policy gradient."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from rollcast.actor.policies.torch_distributions import log_prob_and_entropy
from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.learner.algorithms.critics import RecurrentValueCritic, TorsoValueCritic, ValueCritic
from rollcast.learner.algorithms.descent import FlatParameters
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.minibatches import Steps
from rollcast.learner.algorithms.paired_mlps import Forward, PairedMlps
from rollcast.learner.algorithms.trajectories import observations_to_value, sequence_starts, states_before_ends
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

# The metrics of a step of the optimiser that are watched, in the order of `watch_of`.
STEP_METRICS: Final = ("policy_loss", "value_loss", "entropy", "policy_grad_norm", "critic_grad_norm")

# Settings that decide what a critic learns; older checkpoints, which lack them, had none.
CRITIC_SETTINGS: Final = {"normalize_rewards": False, "share_torso": False}


class ActorCriticNetworks:
    """A policy and its critic. They share either no parameters or the policy's image torso.

    Actors get only the policy. The critic of a recurrent policy gets the policy's states.

    Attributes:
        policy: The policy.
        critic: The critic.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        settings: ActorCriticSettings,
        *,
        substep_key: str,
        device: torch.device,
    ) -> None:
        """Makes both networks.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy, and of the critic.
            settings: Settings with `initial_std` and `share_torso`.
            substep_key: The substep to learn.
            device: Device of the networks and of all batches.

        Raises:
            ConfigurationError: If no network fits the spaces, or the policy has no torso to share.
        """
        self._substep_key = substep_key
        self._action_space = spaces[substep_key].action
        self._shares_torso = settings.share_torso
        self.policy = TorchPolicy(spaces, spec).to(device)
        self.policy.set_std(settings.initial_std)
        critic = TorsoValueCritic if settings.share_torso else RecurrentValueCritic if spec.state_size else ValueCritic
        self.critic: nn.Module = critic(spaces, spec, substep_key=substep_key).to(device)
        self._pair: PairedMlps | None = None

    def pair(self, parameters: FlatParameters) -> None:
        """Computes both networks side by side from now on, if they are MLPs.

        Args:
            parameters: The parameters of `by_name`.
        """
        self._pair = PairedMlps.of(
            self.policy, self.critic, parameters, action_space=self._action_space, substep_key=self._substep_key
        )

    @property
    def by_name(self) -> dict[str, nn.Module]:
        """Both networks by their names in checkpoints, policy first."""
        return {"policy": self.policy, "critic": self.critic}

    def observations(self, batch: Batch, columns: BatchColumns) -> Mapping[str, Tensor]:
        """Returns the observations of `observations_to_value`, normalised for the networks."""
        return self.policy.normalized(observations_to_value(batch, columns), self._substep_key)

    def forward(self, batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor]) -> Forward:
        """Runs both networks on the T * B rows of a batch, and the critic also on the last and N final observations.

        The values are `[(T + 1) * B + N]`.

        Args:
            batch: Trajectories `[T, B, ...]`.
            columns: Its columns.
            rows: Its `observations`.
        """
        n_rows, action = batch.reward.numel(), columns.action.flatten(0, 1)
        if self._pair is not None and self._pair.suits(rows):
            return self._pair.evaluate(rows, action)
        if columns.initial_state is None:
            parameters, values = self._of_observations(rows, n_rows)
        else:
            observation = {path: leaf[:n_rows] for path, leaf in rows.items()}
            parameters, values, states = self._unroll(observation, columns.initial_state, sequence_starts(batch))
            with torch.no_grad():
                ends = {path: leaf[n_rows:] for path, leaf in rows.items()}
                before = states_before_ends(batch, states)
                _, after = self.policy.step(ends, before, self._substep_key, is_normalized=True)
                of_ends = self.critic(ends, after)
            values = torch.cat([values, of_ends])
        return Forward(*log_prob_and_entropy(self._action_space, parameters, action), values)

    def values(self, batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor]) -> Tensor:
        """Returns the values of `forward`; runs the policy only if the critic needs its states."""
        if columns.initial_state is not None:
            return self.forward(batch, columns, rows).values
        seen = self.policy.features_of(rows, self._substep_key) if self._shares_torso else rows
        values: Tensor = self.critic(seen)
        return values

    def evaluate(self, steps: Steps) -> Forward:
        """Runs both networks on the N steps of a minibatch; the values cover only these steps, `[N]`."""
        if self._pair is not None and self._pair.suits(steps.observation):
            return self._pair.evaluate(steps.observation, steps.action)
        if steps.sequences is None:
            parameters, values = self._of_observations(steps.observation, len(steps.valid))
        else:
            parameters, values, _ = self._unroll(steps.observation, *steps.sequences)
        return Forward(*log_prob_and_entropy(self._action_space, parameters, steps.action), values)

    def _of_observations(self, rows: Mapping[str, Tensor], n_rows: int) -> tuple[Tensor, Tensor]:
        """Runs a policy without recurrence on the first rows, and its critic on all rows.

        Args:
            rows: `[N, ...]` for every leaf, normalised.
            n_rows: The number of first rows for the policy.

        Returns:
            The policy's parameters, `[n_rows, P]`; and the values, `[N]`.
        """
        observation = {path: leaf[:n_rows] for path, leaf in rows.items()}
        if not self._shares_torso:
            parameters = self.policy.parameters_of(observation, self._substep_key, is_normalized=True)
            return parameters, self.critic(rows)
        features = self.policy.features_of(rows, self._substep_key)
        parameters = self.policy.parameters_of(
            observation, self._substep_key, is_normalized=True, features=features[:n_rows]
        )
        return parameters, self.critic(features)

    def _unroll(
        self, observation: Mapping[str, Tensor], initial_state: Tensor, starts: SequenceStarts
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Runs a recurrent policy and its critic.

        Args:
            observation: `[T * B, ...]` for every leaf, normalised.
            initial_state: float32 `[B, S]`.
            starts: The rows whose state does not follow from the previous row.

        Returns:
            The policy's parameters, `[T * B, P]`; the values, `[T * B]`; and the states after each row, `[T, B, S]`.
        """
        parameters, states = self.policy.unroll(
            observation, initial_state, starts, self._substep_key, is_normalized=True
        )
        return parameters, self.critic(observation, states.flatten(0, 1)), states


def watch_of(settings: ActorCriticSettings, device: torch.device) -> DivergenceWatch:
    """Returns a watch over the `STEP_METRICS` of every optimiser step."""
    return DivergenceWatch(
        ("policy loss", "value loss", "entropy", "policy's gradient norm", "critic's gradient norm"),
        device=device,
        advice=f"Lower the learning rate ({settings.learning_rate:g}) or max_grad_norm "
        f"({settings.max_grad_norm:g}), or scale rewards and observations down.",
    )
