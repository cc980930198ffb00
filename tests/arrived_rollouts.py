"""Rollouts as a learner gets them: over the wire, and as a batch."""

import torch

from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.torch_distributions import log_prob
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.structured import StructuredRolloutWorker
from rollcast.learner.algorithms.trajectories import observations_to_value, sequence_starts
from rollcast.learner.batch import Batch
from rollcast.learner.batching.batcher import Batcher
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.streams.receiver import parse_request
from tests.unit.actor.structured_environments import SPACES, ScriptedEnv, alternating


def through_the_wire(rollout: Rollout, spaces: EnvironmentSpaces, n_envs: int, spec: PolicySpec) -> tuple[Rollout, int]:
    """Returns a rollout as it arrives, and the bytes of its messages."""
    messages = list(RolloutEncoder().encode(rollout))
    assembler = RolloutAssembler(RolloutShape.played_with(spec, spaces, rollout.n_steps, n_envs))
    for message in messages:
        arrived = assembler.add(*parse_request(message))
    assert arrived is not None
    return arrived, sum(map(len, messages))


def batch_of(rollout: Rollout, spaces: EnvironmentSpaces, spec: PolicySpec) -> Batch:
    """Returns a batch of all trajectories of a rollout that act."""
    key = rollout.substep_key
    acting = rollout.n_envs if rollout.valid is None else int(rollout.valid.any(axis=0).sum())
    batcher = Batcher(
        RolloutShape.played_with(spec, {key: spaces[key]}, rollout.n_steps),
        batch_size=acting,
        copier=make_copier("cpu"),
    )
    batcher.add(RolloutSlice(rollout, 0, rollout.n_envs))
    return batcher.finish().ready()


def replayed_log_prob(policy: TorchPolicy, batch: Batch) -> torch.Tensor:
    """Returns the log-probabilities `[T, B]` of a batch's actions under a recurrent policy."""
    ((key, columns),) = batch.substeps.items()
    rows = observations_to_value(batch, columns)
    observation = {path: leaf[: batch.valid.numel()] for path, leaf in rows.items()}
    assert columns.initial_state is not None
    with torch.no_grad():
        parameters, _ = policy.unroll(observation, columns.initial_state, sequence_starts(batch), key)
        replayed = log_prob(policy.spaces[key].action, parameters, columns.action.flatten(0, 1))
    return replayed.view_as(columns.log_prob)


def alternating_worker(spec: PolicySpec, state: PolicyState, n_steps: int) -> StructuredRolloutWorker:
    """Returns a worker of two environments whose agents act at different times, in episodes of different lengths."""
    episodes = [alternating(5), alternating(3, truncated=True), alternating(1)]
    policy = make_policy(SPACES, spec, seed=0)
    policy.load(1, state)
    return StructuredRolloutWorker(
        StructuredVectorEnv([lambda: ScriptedEnv(episodes), lambda: ScriptedEnv(episodes[1:])]),
        policy,
        n_steps,
        actor_id="a",
        incarnation=1,
        env_seed=0,
    )
