"""R2D2: DQN over sequences, for recurrent policies.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning",
https://openreview.net/forum?id=r1lyTjAqYX.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from rollcast.actor.policies.networks import RecurrentNetwork
from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.dqn import QNetworks
from rollcast.learner.algorithms.one_policy import PRIORITIES, OnePolicy
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.algorithms.trajectories import (
    columns_of,
    observations_to_value,
    sequence_starts,
    states_before_ends,
    values_and_next_values,
    with_first_transitions_in_front,
)
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces

# Of `rescaled`: keeps the inverse Lipschitz continuous; the papers have 1e-2 and 1e-3.
EPSILON: Final = 1e-3


class R2d2(OnePolicy[R2d2Settings]):
    """Double, dueling Q-learning with a target network, from sequences of steps with their initial recurrent states.

    Both networks are unrolled from the actor's state. The first `burn_in` rows only warm up the state, without
    gradients and loss. The loss of the remaining rows:

        y_t = h( sum_{k<n} gamma^k r_{t+k} + gamma^n h^-1( Q'(x_{t+n}, argmax_a Q(x_{t+n}, a)) ) )
        mean[ w H(Q(x_t, a_t) - y_t) ]

    If the episode or the sequence ends earlier, fewer than n rewards are summed. No value follows a termination. h is
    `rescaled`, H is Huber's loss, and w is the importance weight of the sequence. The priority of a sequence is eta
    max_t |Q - y| + (1 - eta) mean_t |Q - y|, equation 1 of the paper, where eta is `priority_max_share`.
    """

    name = "r2d2"
    learns_from_replay = True
    learns_frame_stacks = True
    learns_recurrent_policies = True
    replay_entry = "rollouts"

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: R2d2Settings, seed: int) -> None:
        if not spec.state_size:
            raise ConfigurationError(
                "--recurrence none with --algorithm r2d2, which learns recurrent policies; expected lstm or gru; "
                "choose one of them, or --algorithm dqn"
            )
        self._q = QNetworks(spaces, spec, settings, substep_key=self._substep_key, device=self._device)
        self._policy, self._watch, self._parts = self._q.policy, self._q.watch, self._q.parts
        self._learning_rate = settings.schedules()["learning_rate"]

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch of the replay buffer; see `Algorithm.update`."""
        learning_rate = self._learning_rate(progress)
        metrics = self._run(self._learn, batch, {"learning_rate": learning_rate})
        self._q.follow(self._n_updates, progress)
        return {**metrics, "learning_rate": learning_rate, "epsilon": self._q.epsilon}

    def _learn(self, batch: Batch, now: Numbers) -> Outputs:
        """Makes the optimiser step for a batch, on the device; `now` has the `learning_rate`."""
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
        outputs, every = self._unroll(self._q.online, batch, rows, columns.initial_state)
        with torch.no_grad():
            _, target = self._unroll(self._q.target.module, batch, rows, columns.initial_state)
            values = self._q.best_values(target, every if self._settings.double else None, allowed)
            target = self._targets(batch, values)[batch.burn_in :]
            valid = batch.valid[batch.burn_in :]
            count = valid.sum()
            share = valid / count.clamp(min=1)
            weight = share if batch.weights is None else share * batch.weights
        learnt = self._q.learn(
            outputs,
            columns.action[batch.burn_in :].flatten(),
            None if allowed is None else allowed[learnt_rows],
            target.flatten(),
            weight.flatten(),
            count=count,
            learning_rate=now["learning_rate"],
            reduction=self._reduction,
        )
        with torch.no_grad():
            error = learnt.error.abs().view_as(valid) * valid
            return {
                **learnt.metrics,
                "mean_value": torch.dot(share.flatten(), learnt.value),
                "mean_td_error": (share * error).sum(),
                PRIORITIES: self._priorities_of(error, valid),
            }

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy, which is the Q-network, and copies it to the target; see `Algorithm.begin_with`."""
        super().begin_with(state, None)
        self._q.target.follow(1.0)
        return False

    def _checkpoint_values(self) -> Mapping[str, Any]:
        return {"epsilon": self._q.epsilon}

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        self._q.explore(float(values["epsilon"]))

    def _unroll(
        self, network: nn.Module, batch: Batch, rows: Mapping[str, Tensor], initial_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes a network's outputs for a batch.

        Args:
            network: The network, or the target network.
            batch: The batch, with T rows including the burn-in.
            rows: The observations of `observations_to_value`, in the form that networks see.
            initial_state: float32 `[B, S]`, the states before the first transitions.

        Returns:
            The outputs for the rows after the burn-in, with their graph, float32 `[(T - burn_in) * B, P]`. Then,
            without graph, the outputs for all rows, the last and the final observations, `[(T + 1) * B + N, P]`.
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
            float32 `[T, B]`; undefined in rows that are not transitions.
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
        """Returns the priorities of sequences, float32 `[B]`; 0 for a sequence without transitions.

        Args:
            error: float32 `[L, B]`, absolute TD errors; 0 in rows that are not transitions.
            valid: bool `[L, B]`, True for transitions.
        """
        share = self._settings.priority_max_share
        mean = error.sum(dim=0) / valid.sum(dim=0).clamp(min=1)
        return share * error.amax(dim=0) + (1.0 - share) * mean


def _between(rows: Mapping[str, Tensor], start: int, stop: int | None) -> dict[str, Tensor]:
    return {path: leaf[start:stop] for path, leaf in rows.items()}


@torch.no_grad()
def n_step_returns(*, r_t: Tensor, discount_t: Tensor, continues_t: Tensor, v_tp1: Tensor, n: int) -> Tensor:
    """Computes the n-step returns of trajectories: discounted rewards, plus the value of the observation after them.

        G_t^(1) = r_t + discount_t V(x_{t+1})
        G_t^(k) = r_t + discount_t (G_{t+1}^(k-1) if continues_t, else V(x_{t+1}))

    A return has fewer steps if the episode or the trajectory ends earlier.

    Args:
        r_t: float32 `[T, B]`, rewards.
        discount_t: float32 `[T, B]` in [0, 1], 0 where the episode terminated.
        continues_t: bool `[T, B]`, True if row t + 1 is the next step of the same episode. The last row is ignored.
        v_tp1: float32 `[T, B]`, value of the true next observation, which is the final one at the end of an episode.
        n: The number of steps, at least 1.

    Returns:
        float32 `[T, B]`.
    """
    returns = torch.addcmul(r_t, discount_t, v_tp1)
    for _ in range(min(n, len(r_t)) - 1):
        following = torch.where(continues_t[:-1], returns[1:], v_tp1[:-1])
        returns = torch.cat([torch.addcmul(r_t[:-1], discount_t[:-1], following), returns[-1:]])
    return returns


def rescaled(x: Tensor) -> Tensor:
    """Returns h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x, of any shape.

    h makes rewards of any size learnable without clipping: Pohlen et al. 2018, "Observe and Look Further: Achieving
    Consistent Performance on Atari", https://arxiv.org/abs/1805.11593, proposition A.2.
    """
    size = x.abs()
    # sqrt(|x| + 1) - 1, without the difference of two numbers that are nearly equal
    return x.sign() * (size / ((size + 1.0).sqrt() + 1.0)) + EPSILON * x


def unscaled(y: Tensor) -> Tensor:
    """Returns the x with h(x) = y, of any shape.

    sign(y) (((sqrt(1 + 4 EPSILON (|y| + 1 + EPSILON)) - 1) / (2 EPSILON))^2 - 1)
    """
    size = y.abs() + (1.0 + EPSILON)
    root = torch.sqrt(1.0 + 4.0 * EPSILON * size)
    # (root - 1) / (2 EPSILON), without the difference of two numbers that are nearly equal
    base = 2.0 * size / (root + 1.0)
    return y.sign() * (base - 1.0) * (base + 1.0)
