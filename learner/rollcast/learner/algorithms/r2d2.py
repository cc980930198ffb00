"""R2D2: DQN over sequences, for policies with a memory.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning",
https://openreview.net/forum?id=r1lyTjAqYX.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollcast.actor.policies.networks import RecurrentNetwork
from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.learner.algorithms.n_step_returns import n_step_returns
from rollcast.learner.algorithms.one_policy import PRIORITIES
from rollcast.learner.algorithms.one_substep import columns_of
from rollcast.learner.algorithms.q_learning import QLearning
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.algorithms.trajectories import (
    observations_to_value,
    sequence_starts,
    states_before_ends,
    values_and_next_values,
    with_first_transitions_in_front,
)
from rollcast.learner.algorithms.value_rescaling import rescaled, unscaled
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


class R2d2(QLearning[R2d2Settings]):
    """Double, dueling Q-learning with a target network, from sequences of steps with the recurrent state before them.

    Both networks are unrolled from the state with which the actor played. The first `burn_in` rows only warm the state
    up: no gradient flows through them, and nothing is learnt from them. The loss of the rows after them:

        y_t = h( sum_{k<n} gamma^k r_{t+k} + gamma^n h^-1( Q'(x_{t+n}, argmax_a Q(x_{t+n}, a)) ) )
        mean[ w H(Q(x_t, a_t) - y_t) ]

    Fewer than n rewards are summed where the episode or the sequence ends before; nothing follows where it terminated.
    h rescales values, see `value_rescaling`; H is Huber's loss, w the importance weight of the sequence. Its priority
    is eta max_t |Q - y| + (1 - eta) mean_t |Q - y|, equation 1 of the paper, where eta is `priority_max_share`.
    """

    name = "r2d2"
    learns_recurrent_policies = True
    replay_entry = "rollouts"

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: R2d2Settings, seed: int) -> None:
        if not spec.state_size:
            raise ConfigurationError(
                "--recurrence none with --algorithm r2d2, which learns policies with a memory; expected lstm or gru; "
                "choose one of them, or --algorithm dqn"
            )
        super()._build(spaces, spec, settings, seed)

    def _compute(self, batch: Batch, numbers: Numbers) -> Outputs:
        columns, key = columns_of(batch, self._substep_key), self._substep_key
        if columns.initial_state is None:
            raise ConfigurationError(
                f"the batch has no recurrent states, with a burn-in of {batch.burn_in} steps; expected the states that "
                "the policy acted with; draw from a buffer of rollouts that keeps them (state_size)"
            )
        n_steps, n = batch.reward.shape
        learnt_rows = slice(batch.burn_in * n, n_steps * n)
        rows = with_first_transitions_in_front(batch, observations_to_value(batch, columns))
        rows = self._policy.normalized(rows, key)
        allowed = self._policy.allowed_actions(rows, key)
        outputs, every = self._unroll(self._network, batch, rows, columns.initial_state)
        with torch.no_grad():
            _, target = self._unroll(self._target.module, batch, rows, columns.initial_state)
            values = self._best_values(target, every if self._settings.double else None, allowed)
            target = self._targets(batch, values)[batch.burn_in :]
            valid = batch.valid[batch.burn_in :]
            count = valid.sum()
            share = valid / count.clamp(min=1)
            weight = share if batch.weights is None else share * batch.weights
        learnt = self._learn(
            outputs,
            columns.action[batch.burn_in :].flatten(),
            None if allowed is None else allowed[learnt_rows],
            target.flatten(),
            weight.flatten(),
            count=count,
            learning_rate=numbers["learning_rate"],
        )
        with torch.no_grad():
            error = learnt.error.abs().view_as(valid) * valid
            return {
                **learnt.metrics,
                "mean_value": torch.dot(share.flatten(), learnt.value),
                "mean_td_error": (share * error).sum(),
                PRIORITIES: self._priorities_of(error, valid),
            }

    def _unroll(
        self, network: nn.Module, batch: Batch, rows: Mapping[str, Tensor], initial_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes a network's outputs for a batch.

        Args:
            network: The network, or the target network.
            batch: The batch, with T rows of which the first are the burn-in.
            rows: The observations of `observations_to_value`, as networks see them.
            initial_state: float32 `[B, S]`, the states before the first transitions.

        Returns:
            The outputs for the rows after the burn-in, with their graph, float32 `[(T - burn_in) * B, P]`; and those
            for all rows, the last and the final observations, without, `[(T + 1) * B + N, P]`.
        """
        assert isinstance(network, RecurrentNetwork)
        n_burn_in, (n_steps, n) = batch.burn_in, batch.reward.shape
        starts = sequence_starts(batch)
        state, before, states_before = initial_state, [], []
        with torch.no_grad():
            if n_burn_in:
                warm = SequenceStarts(*(mask[:n_burn_in] for mask in starts))
                outputs, states = network.unroll(_between(rows, 0, n_burn_in * n), initial_state, warm)
                before, states_before = [outputs], [states]
                # where the first transition is still to come, the state is still the first one
                state = torch.where(starts.held[n_burn_in, :, None], initial_state, states[-1])
        rest = SequenceStarts(*(mask[n_burn_in:] for mask in starts))
        learnt, states = network.unroll(_between(rows, n_burn_in * n, n_steps * n), state, rest)
        with torch.no_grad():
            ends, _ = network(
                _between(rows, n_steps * n, None), states_before_ends(batch, torch.cat([*states_before, states]))
            )
            return learnt, torch.cat([*before, learnt, ends])

    def _targets(self, batch: Batch, values: Tensor) -> Tensor:
        """Computes the targets y of the class's docstring.

        Args:
            batch: The batch.
            values: float32 `[(T + 1) * B + N]`, of the best actions in all rows of `observations_to_value`.

        Returns:
            float32 `[T, B]`; anything in rows that are no transition.
        """
        settings = self._settings
        _, v_tp1 = values_and_next_values(batch, unscaled(values) if settings.value_rescaling else values)
        continues = ~(batch.terminated | batch.truncated)
        continues[:-1] &= batch.valid[1:]
        returns = n_step_returns(
            r_t=batch.reward * settings.reward_scale,
            discount_t=settings.discount * ~batch.terminated,
            continues_t=continues,
            v_tp1=v_tp1,
            n=settings.n_step,
        )
        target = rescaled(returns) if settings.value_rescaling else returns
        return torch.where(batch.valid, target, 0.0)

    def _priorities_of(self, error: Tensor, valid: Tensor) -> Tensor:
        """Returns the priorities of sequences, float32 `[B]`; 0 if nothing was learnt from one.

        Args:
            error: float32 `[L, B]`, absolute TD errors; 0 in rows that are no transition.
            valid: bool `[L, B]`, the rows that are.
        """
        share = self._settings.priority_max_share
        mean = error.sum(dim=0) / valid.sum(dim=0).clamp(min=1)
        return share * error.amax(dim=0) + (1.0 - share) * mean


def _between(rows: Mapping[str, Tensor], start: int, stop: int | None) -> dict[str, Tensor]:
    return {path: leaf[start:stop] for path, leaf in rows.items()}
