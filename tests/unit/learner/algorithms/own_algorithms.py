"""Algorithms of somebody's own, some of them broken, as `--algorithm` names them."""

import math

import torch

from examples.own_algorithm import ActorCritic
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.services.policies.policies import PolicySpec


class OwnDqn(Dqn):
    """Learns from a replay buffer."""

    def __init__(self, spaces, spec, *, device, seed, **kwargs):
        super().__init__(spaces, spec, DqnSettings(**kwargs), device=device, seed=seed)


class NormalizesNothing(ActorCritic):
    def __init__(self, spaces, spec, **kwargs):
        super().__init__(spaces, PolicySpec(network=spec.network), **kwargs)


class WantsTheNewestPolicy(ActorCritic):
    """Learns only from what its newest policy has played."""

    on_policy = True


class SaysNan(ActorCritic):
    def update(self, batch, *, progress):
        return {**super().update(batch, progress=progress), "loss": torch.tensor(math.nan)}


class SaysNothing(ActorCritic):
    def update(self, batch, *, progress):
        super().update(batch, progress=progress)


class SaysWords(ActorCritic):
    def update(self, batch, *, progress):
        return {**super().update(batch, progress=progress), "mood": "good"}


class CountsNothing(ActorCritic):
    def update(self, batch, *, progress):
        before = self._n_updates
        metrics = super().update(batch, progress=progress)
        self._n_updates = before
        return metrics


class Diverges(ActorCritic):
    def update(self, batch, *, progress):
        metrics = super().update(batch, progress=progress)
        with torch.no_grad():
            next(iter(self._policy.parameters())).fill_(math.inf)
        return metrics


def makes_a_dict(spaces, spec, *, device, seed):
    return {}


def hides_that_it_replays(spaces, spec, *, device, seed):
    return OwnDqn(spaces, spec, device=device, seed=seed)


def makes_another_policy(spaces, spec, *, device, seed):
    made = ActorCritic(spaces, spec, device=device, seed=seed)
    made._policy = torch.nn.Linear(1, 1)
    return made
