"""IMPALA, PPO and APPO against their losses as they are written down, with episodes that end in every way."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from rollcast.actor.policies.torch_distributions import entropy, log_prob
from rollcast.learner.algorithms.critics import TorsoValueCritic, ValueCritic
from rollcast.learner.algorithms.reward_scaling import RewardNormalizer
from rollcast.learner.algorithms.vtrace import vtrace
from rollcast.learner.batch import Batch
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from tests.actor_critics import ACTION_SPACE, IMAGES, SPEC, ActorCritic, bools
from tests.batches import SPACES, make_batch, with_columns
from tests.every_algorithm import make_algorithm
from tests.learnt import first_gradient, joined, learnt

COMMON = {"discount": 0.9, "value_cost": 0.7, "entropy_cost": 0.3, "normalize_advantages": False, "max_grad_norm": 1e9}
ONE_PASS = {"n_epochs": 1, "minibatch_steps": 20, "clip_range": 0.3}
# Column 0 is reset in the step after its end, the others with it; what is no transition may hold anything.
TERMINATED = bools(5, 4, (1, 1), (3, 2))
TRUNCATED = bools(5, 4, (1, 0), (2, 2), (4, 3))
INVALID = bools(5, 4, (2, 0), (0, 3))
# Actions that no policy chose: at an end, before one, and in the middle.
OVERRIDDEN = bools(5, 4, (1, 1), (2, 3), (3, 0), (4, 0))
FINAL_INDEX = torch.tensor([[1, 1], [2, 2], [4, 3]])


def make(kind: str, spaces: EnvironmentSpaces, **settings: object) -> ActorCritic:
    clips = {"trace_lambda": 0.8, "clip_rho": 0.9, "clip_c": 0.7}
    if kind == "impala":
        settings |= {**clips, "clip_pg_rho": 0.8, "adam_beta1": 0.9}
    else:
        settings |= {**ONE_PASS, "gae_lambda": 0.8} if kind == "ppo" else {**ONE_PASS, **clips}
    return make_algorithm(kind, spaces, SPEC, **COMMON, **settings)


def with_images(batch: Batch) -> Batch:
    """Every observation beside an image."""
    columns, rng = batch.substeps[FLAT_SUBSTEP], torch.Generator().manual_seed(0)

    def seen(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shape = (*leaves[""].shape[:-1], 36, 36, 1)
        return {"image": torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng), "vector": leaves[""]}

    observed = {name: seen(getattr(columns, name)) for name in ("observation", "last_observation", "final_observation")}
    return with_columns(batch, **observed)


@pytest.mark.parametrize(
    "case",
    ["rewards as they are", "clipped and scaled", "normalised and scaled", "one torso for two", "actions of others"],
)
@pytest.mark.parametrize("kind", ["impala", "ppo", "appo"])
def test_an_update_follows_the_gradient_of_the_documented_loss(kind: str, case: str):
    shaped, shares, normalizes = "scaled" in case, case == "one torso for two", "normalised" in case
    settings = {"reward_clip": "unit", "reward_scale": 0.5} if shaped else {"reward_scale": 1.0}
    spaces = IMAGES if shares else SPACES
    overridden = OVERRIDDEN if case == "actions of others" else torch.zeros_like(OVERRIDDEN)
    algorithm = make(kind, spaces, share_torso=shares, normalize_rewards=normalizes, **settings)
    reward = 2.0 * make_batch().reward
    batch = make_batch(
        terminated=TERMINATED,
        truncated=TRUNCATED,
        valid=~INVALID,
        reward=torch.where(INVALID, 1e6, reward),
        final_index=FINAL_INDEX,
        final_observation=torch.tensor([[5.0, -5.0, 5.0], [-3.0, 1.0, 0.0], [0.0, 4.0, 2.0]]),
        overridden=overridden if overridden.any() else None,
    )
    batch = with_images(batch) if shares else batch
    columns = batch.substeps[FLAT_SUBSTEP]
    observation = {path: leaf.flatten(0, 1) for path, leaf in columns.observation.items()}
    parameters = algorithm.policy.parameters_of(observation)
    log_pi = log_prob(ACTION_SPACE, parameters, columns.action.flatten()).view(5, 4)
    noise = 0.4 * torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    acted = (log_pi - torch.where(INVALID | overridden, 100.0, noise)).detach()
    batch = with_columns(batch, log_prob=acted)

    critic = (TorsoValueCritic if shares else ValueCritic)(spaces, SPEC, substep_key=FLAT_SUBSTEP)
    critic.load_state_dict(learnt(algorithm, "critic"))

    def values(seen: Mapping[str, Tensor]) -> Tensor:
        return critic(algorithm.policy.networks[FLAT_SUBSTEP].features(seen) if shares else seen)

    v_t = values(observation).view(5, 4)
    v_tp1 = torch.cat([v_t[1:], values(columns.last_observation)[None]]).detach().clone()
    v_tp1[FINAL_INDEX[:, 0], FINAL_INDEX[:, 1]] = values(columns.final_observation).detach()
    log_rho = torch.where(INVALID | overridden, 0.0, log_pi - acted)
    never = torch.where(overridden, -torch.inf, 0.0)  # the policy would not be there
    rewards = batch.reward.clamp(-1.0, 1.0) if shaped else batch.reward
    if normalizes:
        normalizer = RewardNormalizer(0.9)
        normalizer.observe(rewards, batch, batch.n_env_steps)
        rewards = normalizer.normalize(rewards)
    given = {
        "r_t": 0.5 * rewards if shaped else rewards,
        "discount_t": 0.9 * ~TERMINATED,
        "continues_t": ~(TERMINATED | TRUNCATED),
        "v_t": v_t.detach(),
        "v_tp1": v_tp1,
    }
    if kind == "ppo":
        target = vtrace(log_rho_t=never, **given, lambda_=0.8).vs
        advantage = target - given["v_t"]
    else:
        pg = {"clip_pg_rho": 0.8} if kind == "impala" else {}
        returns = vtrace(log_rho_t=log_rho.detach() + never, **given, clip_rho=0.9, clip_c=0.7, lambda_=0.8, **pg)
        advantage, target = returns.pg_advantage if kind == "impala" else returns.advantage, returns.vs

    def mean(terms: Tensor) -> Tensor:
        return terms[~(INVALID | overridden)].mean()

    if kind == "impala":
        policy_loss = -mean(advantage * log_pi)
    else:
        policy_loss = -mean(torch.minimum(log_rho.exp() * advantage, log_rho.exp().clamp(0.7, 1.3) * advantage))
    value_loss = 0.5 * mean((target - v_t).square())
    mean_entropy = mean(entropy(ACTION_SPACE, parameters).view(5, 4))
    networks = [*algorithm.policy.parameters(), *critic.parameters()]
    expected = joined(torch.autograd.grad(policy_loss + 0.7 * value_loss - 0.3 * mean_entropy, networks))

    metrics = algorithm.update(batch, progress=0.0)
    torch.testing.assert_close(first_gradient(algorithm), expected, rtol=1e-4, atol=1e-5)
    for name, value in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", mean_entropy)):
        torch.testing.assert_close(metrics[name], value.detach())
    if kind == "appo":
        kl = mean(log_rho.exp() - 1 - log_rho).detach()
        torch.testing.assert_close(metrics["stale_kl"], kl)
        torch.testing.assert_close(metrics["approx_kl"], kl)
