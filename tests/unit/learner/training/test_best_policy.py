import gymnasium
import numpy as np
import pytest
import torch

from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.experience.experience import Experience, FreshExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.run_keeper import BestPolicy
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.training.trainer import Trainer
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from tests.actor_kinds import make_policy_for


class GoodForAWhile(gymnasium.Env[np.ndarray, int]):
    """Episodes of one step. Those from 200 to 299 have the return 1, all others 0, whatever the policy does."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._n_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = float(200 <= self._n_episodes < 300)
        self._n_episodes += 1
        return np.zeros(1, np.float32), reward, True, False, {}


def best_policy(n_return_episodes: int = 100) -> tuple[BestPolicy, TrainingProgress]:
    """Returns one whose policies have the number of episodes for a version."""
    progress = TrainingProgress(n_return_episodes=n_return_episodes)

    def snapshot() -> SavedPolicy:
        return SavedPolicy(
            spec=PolicySpec(),
            state={},
            policy_version=progress.episodes,
            env_steps=progress.env_steps,
            mean_return=None,
        )

    return BestPolicy(progress, snapshot), progress


def play(best: BestPolicy, progress: TrainingProgress, returns: list[float]) -> None:
    """An update for each episode."""
    for value in returns:
        lag = np.zeros(1, np.int64)
        progress.record(
            Experience(batch=None, env_steps=1, n_episodes=1, returns=(value,), policy_lag=lag, waited_s=0.0)
        )
        best.observe()


@pytest.mark.slow
def test_the_best_policy_is_the_one_of_the_middle_of_its_episodes(tmp_path):
    make_env = GoodForAWhile
    policy = make_policy_for(make_env)
    actors = SequentialDistributedActors(make_env, policy, 5, 1, 1, envs_per_actor=1, seed=0)
    run = RunDirectory.create(tmp_path, "run")
    trainer = Trainer(
        FreshExperience(actors),
        Impala(policy.spaces, policy.spec, ImpalaSettings()),
        TrainingControl(algorithm="impala", run_dir=None),
        TrainingSchedule(total_steps=600, stop_return=None),
        device=torch.device("cpu"),
        run=run,
    )
    trainer.run()
    best = run.read_policy("best")
    assert best.mean_return == 1.0, "episodes 200 to 299"
    # Of one step each, an episode is an environment step. Copies are kept every 25 episodes, an update has 5.
    assert best.env_steps == pytest.approx(250, abs=25)
    assert run.read_policy("last").env_steps == 600


def test_the_best_policy_of_a_run_that_ends_at_a_record_is_taken_from_the_middle_too():
    best, progress = best_policy()
    play(best, progress, [0.0] * 100 + [1.0] * 110)
    assert best.unwritten is not None
    assert best.unwritten.mean_return == 1.0
    assert best.unwritten.policy_version == pytest.approx(150, abs=25)


def test_a_record_is_kept_until_it_is_written():
    best, progress = best_policy(n_return_episodes=4)
    play(best, progress, [1.0] * 30)
    assert best.unwritten is not None
    assert best.written_return == float("-inf")
    best.note_written()
    assert (best.unwritten, best.written_return) == (None, 1.0)
    play(best, progress, [0.5] * 60)
    assert best.unwritten is None, "no record"


def test_a_resumed_run_keeps_the_best_policy_of_the_process_before():
    best, progress = best_policy(n_return_episodes=4)
    best.resume(2.0)
    play(best, progress, [1.0] * 60)
    assert best.unwritten is None
    assert best.written_return == 2.0
    play(best, progress, [3.0] * 60)
    assert best.unwritten is not None
