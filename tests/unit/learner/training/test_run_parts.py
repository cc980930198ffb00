import pytest
import torch

from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import make_replay_buffers
from rollcast.services.errors import ConfigurationError
from tests.rollouts import CARTPOLE_LIKE


def test_algorithm_of_ones_own_may_learn_from_whole_rollouts():
    settings = TrainSettings.from_command_line(
        "rollcast train",
        ["--env-id", "CartPole-v1", "--algorithm", "examples.own_algorithm:ActorCritic", "--replay.entry", "rollouts"],
    )
    settings = settings.model_copy(update={"replay": settings.replay.model_copy(update={"capacity": 100})})
    buffers = make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=print)
    assert [buffer.entry for buffer in buffers.values()] == ["rollouts"]


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_algorithm_of_transitions_refuses_a_buffer_of_rollouts_before_it_is_made(algorithm: str):
    settings = TrainSettings.from_command_line(
        "rollcast train", ["--env-id", "CartPole-v1", "--algorithm", algorithm, "--replay.entry", "rollouts"]
    )
    with pytest.raises(ConfigurationError, match=f"--replay.entry: 'rollouts' with --algorithm {algorithm}"):
        make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=print)
