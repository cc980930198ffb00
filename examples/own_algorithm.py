"""Your own algorithm: advantage actor-critic, on fresh rollouts.

    rollcast train --algorithm examples.own_algorithm:ActorCritic --algorithm-kwargs '{"learning_rate": 0.002}'

`python examples/own_algorithm.py` does the same. Metrics, the live view, checkpoints, `--resume`, `rollcast evaluate`
and `rollcast record` work without further code: a checkpoint keeps the modules and the optimiser among its attributes.
"""

import sys

import torch
from torch.distributions import Categorical

from rollcast.actor import TorchPolicy
from rollcast.learner import Algorithm, Batch, Metrics, ValueCritic, main
from rollcast.services import EnvironmentSpaces, PolicySpec


class ActorCritic(Algorithm):
    """A2C (Mnih et al. 2016) for Discrete actions that begin with 0. A time limit counts as the end of an episode."""

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        *,
        device: torch.device,
        seed: int,
        discount: float = 0.99,
        learning_rate: float = 2e-3,
        entropy_cost: float = 0.01,
    ) -> None:
        torch.manual_seed(seed)
        (self._key,) = spaces
        self._discount, self._entropy_cost = discount, entropy_cost
        self._policy = TorchPolicy(spaces, spec).to(device)
        self._critic = ValueCritic(spaces, spec, substep_key=self._key).to(device)
        parameters = [*self._policy.parameters(), *self._critic.parameters()]
        self._optimizer = torch.optim.Adam(parameters, lr=learning_rate)

    @property
    def policy(self) -> TorchPolicy:
        """The policy that learns."""
        return self._policy

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Makes one gradient step."""
        columns = batch.substeps[self._key]
        normalized = self._policy.normalized  # as --normalize-observations says
        observation = normalized({path: leaf.flatten(0, 1) for path, leaf in columns.observation.items()}, self._key)
        returns, goes_on = [], ~(batch.terminated | batch.truncated)
        with torch.no_grad():
            following = self._critic(normalized(columns.last_observation, self._key))
            for t in reversed(range(len(batch.reward))):
                following = batch.reward[t] + self._discount * goes_on[t] * following
                returns.insert(0, following)
        values = self._critic(observation).view_as(batch.reward)
        errors = (torch.stack(returns) - values)[batch.valid]
        distribution = Categorical(logits=self._policy.parameters_of(observation, self._key, is_normalized=True))
        log_prob = distribution.log_prob(columns.action.flatten()).view_as(batch.reward)[batch.valid]
        advantages = (errors.detach() - errors.detach().mean()) / (errors.detach().std() + 1e-6)
        policy_loss, value_loss = -(advantages * log_prob).mean(), 0.5 * errors.square().mean()
        entropy = distribution.entropy().mean()
        self._optimizer.zero_grad()
        (policy_loss + value_loss - self._entropy_cost * entropy).backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 0.5)
        self._optimizer.step()
        self._n_updates += 1
        return {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "entropy": entropy.detach()}


if __name__ == "__main__":
    sys.exit(main(["train", "--algorithm", "examples.own_algorithm:ActorCritic", *sys.argv[1:]]))
