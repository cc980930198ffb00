"""Single frames and stacks: the learner finds the same batches as with gymnasium's FrameStackObservation."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from rollcast.actor.environments.recovering import RecoveringEnv
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import environment_spaces
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.trajectories import observations_to_value
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from tests.arrived_rollouts import alternating_worker, batch_of, through_the_wire
from tests.unit.actor.structured_environments import SPACES as STRUCTURED

T, B, K, N_ROLLOUTS = 13, 3, 4, 5
SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
# Steps are dropped with SAME_STEP only.
RAISING = "environment that raises"


class Film(gymnasium.Env):
    """Shows random images, in episodes of random length, some shorter than a stack; the action shows in the next."""

    action_space = spaces.Discrete(3)

    def __init__(self, shape: tuple[int, ...] = (36, 36), raises_every: int = 10**9) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.raises_every, self.n_steps = raises_every, 0

    def _frame(self) -> np.ndarray:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._frame(), {}

    def step(self, action):
        self.n_steps += 1
        if self.n_steps % self.raises_every == 0:
            raise RuntimeError("broken")
        frame = self._frame()
        frame.flat[0] = action
        ends = self.np_random.random(2) < (0.15, 0.1)
        return frame, float(action), bool(ends[0]), bool(ends[1] and not ends[0]), {}


def cartpole() -> gymnasium.Env:
    return TimeLimit(gymnasium.make("CartPole-v1"), 9)


ENVIRONMENTS: dict[str, Callable[[], gymnasium.Env]] = {
    "image [H, W]": Film,
    "image [H, W, C]": lambda: Film((36, 37, 2)),
    "image [C, H, W]": lambda: Film((2, 36, 37)),
    "vector": cartpole,
    RAISING: lambda: Film(raises_every=9),
}


class Player(NamedTuple):
    """A worker with the spaces and the policy that it has."""

    worker: RolloutWorker
    spaces: EnvironmentSpaces
    policy: Policy


def player_of(environment: Callable[[], gymnasium.Env], spec: PolicySpec, mode: AutoresetMode) -> Player:
    vector_env = SyncVectorEnv([lambda: RecoveringEnv(environment())] * B, autoreset_mode=mode)
    known = environment_spaces(vector_env)
    torch.manual_seed(5)
    state = TorchPolicy(known, spec).state_arrays()
    # far from their first values, so that the policy's actions depend on what it sees
    policy = make_policy(known, spec, seed=2)
    policy.load(1, {name: array * np.float32(3.0) for name, array in state.items()})
    worker = RolloutWorker(vector_env, policy, T, actor_id="a", incarnation=1, env_seed=3)
    return Player(worker, known, policy)


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in ENVIRONMENTS for mode in (SAME, NEXT) if (name, mode) != (RAISING, NEXT)],
)
def test_batches_are_those_of_gymnasiums_wrapper(name: str, mode: AutoresetMode):
    environment = ENVIRONMENTS[name]
    specs = PolicySpec(frame_stack=K), PolicySpec()
    single = player_of(environment, specs[0], mode)
    stacked = player_of(lambda: FrameStackObservation(environment(), K), specs[1], mode)
    sizes, n_ends, n_invalid = np.zeros(2), 0, 0
    for _ in range(N_ROLLOUTS):
        batches = []
        for i, ((worker, known, _), spec) in enumerate(zip((single, stacked), specs, strict=True)):
            rollout, n_bytes = through_the_wire(worker.collect(), known, B, spec)
            sizes[i] += n_bytes
            batches.append(batch_of(rollout, known, spec))
        one, other = batches
        own, expected = (batch.substeps[FLAT_SUBSTEP] for batch in batches)
        assert torch.equal(own.action, expected.action)
        assert torch.equal(own.log_prob[one.valid], expected.log_prob[one.valid])
        for field in ("reward", "terminated", "truncated", "valid", "final_index"):
            assert torch.equal(getattr(one, field), getattr(other, field)), field
        rows, stacks = observations_to_value(one, own)[""], observations_to_value(other, expected)[""]
        # The row of a step in which the environment raised has no meaning; reset rows have the final observation.
        means = torch.ones(len(rows), dtype=torch.bool)
        if mode is SAME:
            means[: T * B] = one.valid.flatten()
        assert torch.equal(rows[means], stacks[means])
        n_ends += int((one.terminated | one.truncated).sum())
        n_invalid += int((~one.valid).sum())
    assert n_ends > 2 * N_ROLLOUTS
    assert (n_invalid > 0) is (mode is NEXT or name == RAISING)
    if "image" in name and mode is SAME:
        # K - 1 + T + 1 frames and the final ones, instead of K times those but the first
        n_final = n_ends / N_ROLLOUTS
        expected_ratio = K * ((T + 1) * B + n_final) / ((T + K) * B + n_final)
        assert sizes[1] / sizes[0] == pytest.approx(expected_ratio, rel=0.05)
    for player in (single, stacked):
        player.worker.close()


@pytest.mark.parametrize("recurrence", ["none", "gru"])
@pytest.mark.parametrize("algorithm", ["impala", "ppo", "appo"])
def test_learner_learns_the_bits_that_it_learns_from_stacks(algorithm: str, recurrence: str):
    learnt = []
    for environment, frame_stack in ((cartpole, K), (lambda: FrameStackObservation(cartpole(), K), 1)):
        settings = {
            "impala": (Impala, ImpalaSettings()),
            "ppo": (Ppo, PpoSettings(minibatch_steps=T * B)),
            "appo": (Appo, AppoSettings(minibatch_steps=T * B)),
        }
        kind, own = settings[algorithm]
        memory = {} if recurrence == "none" else {"recurrence": recurrence, "recurrent_size": 8}
        spec = PolicySpec(frame_stack=frame_stack, hidden_sizes=(16,), **memory)
        worker, known, policy = player_of(environment, spec, SAME)
        made = kind(known, spec, own, seed=7)
        for update in range(4):
            policy.load(update + 1, made.policy_state())
            made.update(batch_of(worker.collect(), known, spec), progress=0.0)
        learnt.append(made.policy_state())
        worker.close()
    one, other = learnt
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize("n_steps", [3, 7])
def test_frames_of_agents_that_act_at_different_times(n_steps: int):
    spec = PolicySpec(frame_stack=K, hidden_sizes=(8,))
    worker = alternating_worker(spec, TorchPolicy(STRUCTURED, spec).state_arrays(), n_steps)
    # The frames of the running episode of each trajectory of each substep, over the borders of rollouts.
    running: dict[tuple[str, int], deque[np.ndarray]] = {}
    n_padded = n_compared = 0
    for _ in range(16):
        rollout, _ = through_the_wire(worker.collect(), STRUCTURED, 2, spec)
        key = rollout.substep_key
        valid = np.ones((n_steps, rollout.n_envs), bool) if rollout.valid is None else rollout.valid
        acting = np.flatnonzero(valid.any(axis=0))
        n_padded += int((~valid).sum())
        batch = batch_of(rollout, STRUCTURED, spec)
        (columns,) = batch.substeps.values()
        finals = {tuple(index): i for i, index in enumerate(batch.final_index.tolist())}
        for path, rows in observations_to_value(batch, columns).items():
            n_rows = n_steps * len(acting)
            of_rows = rows[:n_rows].view(n_steps, len(acting), *rows.shape[1:]).numpy()
            of_finals = rows[n_rows + len(acting) :].numpy()
            for column, b in enumerate(acting.tolist()):
                for t in np.flatnonzero(valid[:, b]):
                    frame = rollout.substeps[key].observation[path][t, b]
                    frames = running.setdefault((f"{key}/{path}", b), deque(maxlen=K))
                    frames.extend([frame] * (1 if frames else K))
                    np.testing.assert_array_equal(of_rows[t, column], np.stack(frames))
                    n_compared += 1
                    if rollout.terminated[t, b] or rollout.truncated[t, b]:
                        i = finals[t, column]
                        frames.append(columns.final_observation[path][i].numpy())
                        np.testing.assert_array_equal(of_finals[i], np.stack(frames))
                        frames.clear()
    assert n_compared > 50
    assert n_padded
    worker.close()
