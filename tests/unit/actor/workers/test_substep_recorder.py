import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.policies.frame_stacks import FrameStacks
from rollcast.actor.workers.substep_recorder import SubstepRecorder
from rollcast.services.spaces.spaces import SubstepSpaces

SPACES = SubstepSpaces(observation=spaces.Box(-1e6, 1e6, (1,)), action=spaces.Discrete(2))


@pytest.mark.parametrize("seed", range(20))
def test_states_and_frames_before_a_rollout_are_those_of_its_first_row_whoever_is_ahead(seed):
    """Each agent sees the numbers of its steps, and its state is the number of steps that it has acted on."""
    rng = np.random.default_rng(seed)
    n = 3
    stacks = FrameStacks(2, n)
    recorder = SubstepRecorder(SPACES, 8, n, n_ahead=3, initial_state=np.zeros((n, 1), np.float32), stacks=stacks)
    next_step = [0] * n

    is_open = [False] * n

    def see(agent):
        recorder.see(agent, {"": np.array([next_step[agent]], np.float32)})
        is_open[agent] = False

    for agent in range(n):
        see(agent)
    recorded_until = [0] * n
    for _ in range(20):
        while not recorder.has_all_rows(0, n) and not (recorder.has_rows and rng.random() < 0.1):
            for agent in range(n):
                if is_open[agent] and rng.random() < 0.3:
                    see(agent)
            able = [agent for agent in range(n) if recorder.has_room(agent) and not is_open[agent]]
            if not able:
                continue
            agents = np.sort(rng.permutation(able)[: rng.integers(1, len(able) + 1)])
            stacked = recorder.seen(agents)[""][:, :, 0]
            assert [*stacked[:, 1]] == [next_step[agent] for agent in agents]
            state = recorder.state_of(agents)
            assert [*state[:, 0]] == [next_step[agent] for agent in agents]
            recorder.act(agents, np.zeros(len(agents), np.int64), np.zeros(len(agents), np.float32), state + 1)
            for agent in agents:
                next_step[agent] += 1
                recorder.earn(agent, float(next_step[agent]))
                is_open[agent] = True
                if rng.random() < 0.7:
                    see(agent)
        recorded = recorder.take()
        for agent in range(n):
            valid = slice(None) if recorded.valid is None else recorded.valid[:, agent]
            seen = recorded.columns.observation[""][valid, agent, 0]
            first = recorded_until[agent]
            recorded_until[agent] += len(seen)
            assert [*seen] == [*range(first, recorded_until[agent])]
            assert [*recorded.reward[valid, agent]] == [step + 1 for step in seen]
            assert recorded.columns.last_observation[""][agent] == recorded_until[agent]
            if len(seen):
                assert recorded.columns.initial_state[agent] == first
                assert recorded.columns.previous_observation[""][agent, 0] == max(0, first - 1)
