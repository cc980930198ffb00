"""A recurrent policy's rollouts, through the wire: the learner finds the states, log-probabilities and values again."""

import dataclasses
from collections.abc import Iterator

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollcast.actor.environments.masked_cartpole import make
from rollcast.actor.environments.recovering import RecoveringEnv
from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy
from rollcast.actor.policies.torch_acting import TorchActingPolicy
from rollcast.actor.policies.torch_q_values import action_values
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import environment_spaces
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.algorithms.actor_critic_networks import ActorCriticNetworks
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.trajectories import sequence_starts
from rollcast.learner.batch import Batch
from rollcast.learner.replay.batches import to_batch
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.policies.policies import PolicyHead, PolicySpec, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.arrived_rollouts import alternating_worker, batch_of, replayed_log_prob, through_the_wire
from tests.unit.actor.structured_environments import SPACES as STRUCTURED

T, B, N_ROLLOUTS = 17, 3, 8
SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
# Every layer with every way to act, and each of both with every way to reset.
EVERY_PAIR = pytest.mark.parametrize(
    ("kind", "acting", "mode"),
    [
        ("lstm", NumpyMlpPolicy, SAME),
        ("lstm", TorchActingPolicy, NEXT),
        ("gru", NumpyMlpPolicy, NEXT),
        ("gru", TorchActingPolicy, SAME),
    ],
)


class Raising(gymnasium.Wrapper):
    """Raises in every 23rd step."""

    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        if self.n_steps % 23 == 0:
            raise RuntimeError("broken")
        return super().step(action)


def spec_of(kind: str, head: PolicyHead = "default") -> PolicySpec:
    return PolicySpec(hidden_sizes=(16,), recurrence=kind, recurrent_size=8, head=head)


def weights(policy: TorchPolicy) -> PolicyState:
    """Weights far from their first values, so that what is remembered counts."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy.state_arrays()


def assert_replays(policy: TorchPolicy, batch: Batch) -> None:
    (columns,) = batch.substeps.values()
    difference = (replayed_log_prob(policy, batch) - columns.log_prob)[batch.valid]
    assert difference.abs().max().item() < 1e-5


def flat_rollouts(
    kind: str, acting: type, mode: AutoresetMode, *, raises: bool = False, head: PolicyHead = "default"
) -> Iterator[tuple]:
    def environment() -> gymnasium.Env:
        env: gymnasium.Env = gymnasium.wrappers.TimeLimit(make(), 12)
        return RecoveringEnv(Raising(env)) if raises else env

    vector_env = SyncVectorEnv([environment] * B, autoreset_mode=mode)
    spaces, spec = environment_spaces(vector_env), spec_of(kind, head)
    learning = TorchPolicy(spaces, spec)
    policy = acting(spaces, spec, seed=0)
    policy.load(1, weights(learning))
    worker = RolloutWorker(vector_env, policy, T, actor_id="a", incarnation=1, env_seed=0)
    for _ in range(N_ROLLOUTS):
        rollout = worker.collect()
        assert rollout is not None
        yield learning, through_the_wire(rollout, spaces, B, spec)[0]
    worker.close()


@EVERY_PAIR
def test_replayed_rollouts_give_the_actors_log_probabilities(kind: str, acting: type, mode: AutoresetMode):
    n_ends = 0
    for learning, rollout in flat_rollouts(kind, acting, mode):
        assert_replays(learning, batch_of(rollout, learning.spaces, learning.spec))
        n_ends += int(rollout.terminated.sum() + rollout.truncated.sum())
        assert (rollout.valid is not None) is (mode is NEXT)
    assert n_ends > 2 * N_ROLLOUTS


@EVERY_PAIR
def test_replayed_sequences_give_the_actors_greedy_actions_and_next_states(
    kind: str, acting: type, mode: AutoresetMode
):
    """Of a policy of values: through the wire and the replay buffer, over the ends of episodes."""
    following = None
    for learning, rollout in flat_rollouts(kind, acting, mode, head="dueling_q_values"):
        spec = learning.spec
        replay = ReplaySettings(entry="rollouts", sampler="fifo", burn_in=5, sequence_length=T - 5)
        buffer = ReplayBuffer(replay, learning.spaces, n_rollout_steps=T, batch_size=B, state_size=spec.state_size)
        buffer.insert(rollout)
        batch = to_batch(buffer.sample(B), "cpu")
        columns = batch.substeps[FLAT_SUBSTEP]
        observation = {path: leaf.flatten(0, 1) for path, leaf in columns.observation.items()}
        with torch.no_grad():
            outputs, states = learning.unroll(observation, columns.initial_state, sequence_starts(batch))
        best = action_values(outputs, spec.head).argmax(dim=1).view_as(columns.action)
        assert torch.equal(best[batch.valid], columns.action[batch.valid])
        if following is not None:
            torch.testing.assert_close(columns.initial_state, following, rtol=0, atol=1e-5)
        is_over = batch.terminated[-1] | batch.truncated[-1] | ~batch.valid[-1]
        following = torch.where(is_over[:, None], 0.0, states[-1])


def test_steps_in_which_an_environment_raised_are_replayed_too():
    n_dropped = 0
    for learning, rollout in flat_rollouts("lstm", NumpyMlpPolicy, SAME, raises=True):
        assert_replays(learning, batch_of(rollout, learning.spaces, learning.spec))
        n_dropped += 0 if rollout.valid is None else int((~rollout.valid).sum())
    assert n_dropped > 3


def test_state_matters_for_the_replay():
    """A replay that forgot the states at t = 0, or the ends of episodes, would show."""
    *_, (learning, rollout) = flat_rollouts("lstm", NumpyMlpPolicy, SAME)
    batch = batch_of(rollout, learning.spaces, learning.spec)
    (columns,) = batch.substeps.values()
    forgotten = dataclasses.replace(columns, initial_state=torch.zeros_like(columns.initial_state))
    endless = dataclasses.replace(batch, terminated=torch.zeros_like(batch.terminated), truncated=~batch.valid)
    for wrong in (dataclasses.replace(batch, substeps={FLAT_SUBSTEP: forgotten}), endless):
        assert (replayed_log_prob(learning, wrong) - columns.log_prob).abs().max().item() > 1e-4


@pytest.mark.parametrize(("kind", "n_steps"), [("lstm", 3), ("gru", 7)])
def test_states_of_agents_that_act_at_different_times_are_replayed(kind: str, n_steps: int):
    spec = spec_of(kind)
    learning = TorchPolicy(STRUCTURED, spec)
    worker = alternating_worker(spec, weights(learning), n_steps)
    n_padded = 0
    for _ in range(16):
        rollout, _ = through_the_wire(worker.collect(), STRUCTURED, 2, spec)
        n_padded += 0 if rollout.valid is None else int((~rollout.valid).sum())
        assert_replays(learning, batch_of(rollout, STRUCTURED, spec))
    assert n_padded


def networks_of(learning: TorchPolicy) -> ActorCriticNetworks:
    """The policy with a critic."""
    networks = ActorCriticNetworks(
        learning.spaces, learning.spec, ImpalaSettings(), substep_key=FLAT_SUBSTEP, device=torch.device("cpu")
    )
    networks.policy.load_state_arrays(learning.state_arrays())
    return networks


@pytest.mark.parametrize(("kind", "mode"), [("lstm", NEXT), ("gru", SAME), ("gru", NEXT)])
def test_values_equal_those_of_single_steps_with_the_state_before_the_reset(kind: str, mode: AutoresetMode):
    networks: ActorCriticNetworks | None = None
    for learning, rollout in flat_rollouts(kind, NumpyMlpPolicy, mode):
        if networks is None:
            networks = networks_of(learning)
        batch = batch_of(rollout, learning.spaces, learning.spec)
        (columns,) = batch.substeps.values()
        with torch.no_grad():
            values = networks.forward(batch, columns, networks.observations(batch, columns)).values
            expected = _values_one_by_one(networks, batch)
        used = torch.cat([batch.valid.flatten(), torch.ones(len(values) - batch.valid.numel(), dtype=torch.bool)])
        if mode is NEXT:
            # The row between two episodes gives the value of what the first one ended with.
            used[B : T * B] |= batch.truncated[:-1].flatten()
        torch.testing.assert_close(values[used], expected[used], atol=1e-5, rtol=1e-4)


def _values_one_by_one(networks: ActorCriticNetworks, batch: Batch) -> torch.Tensor:
    """Steps each trajectory by itself, with the actor's rule: an episode begins with a state of zeros."""
    (columns,) = batch.substeps.values()
    finals = {(int(t), int(b)): i for i, (t, b) in enumerate(batch.final_index)}
    of_rows, of_last, of_final = torch.zeros(T, B), torch.zeros(B), torch.zeros(len(finals))

    def step(observation: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, after = networks.policy.step({"": observation[None]}, state)
        return networks.critic({"": observation[None]}, after)[0], after

    for b in range(B):
        state, has_reset_row = columns.initial_state[b : b + 1], False
        for t in range(T):
            if not batch.valid[t, b]:
                has_reset_row = True
            of_rows[t, b], state = step(columns.observation[""][t, b], state)
            if (t, b) in finals:
                of_final[finals[t, b]], _ = step(columns.final_observation[""][finals[t, b]], state)
            ends = bool(batch.terminated[t, b] | batch.truncated[t, b])
            begins_next = ends if finals else has_reset_row
            last_state = state
            if t == 0 and has_reset_row:
                state = columns.initial_state[b : b + 1]
            elif begins_next:
                state = torch.zeros_like(state)
            has_reset_row = False
        of_last[b], _ = step(columns.last_observation[""][b], last_state)
    return torch.cat([of_rows.flatten(), of_last, of_final])
