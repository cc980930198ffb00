import torch

from learner.algorithms.impala import Impala
from learner.algorithms.impala_settings import ImpalaSettings
from learner.control import TrainingControl
from learner.experience import FreshExperience
from learner.trainer import Schedule, Trainer
from tests.actor_kinds import make_actors


def test_episodes_are_kept_until_the_next_record_only():
    actors = make_actors("sequential")
    algorithm = Impala(actors.policy.spaces, actors.policy.spec, ImpalaSettings())
    trainer = Trainer(
        FreshExperience(actors),
        algorithm,
        TrainingControl(algorithm="impala", run_dir=None),
        Schedule(total_steps=500, stop_return=None, log_interval_s=0.0),
        device=torch.device("cpu"),
    )
    summary = trainer.run()
    statistics = actors.get_epoch_stats_aggregator().epoch_stats()
    assert summary.env_steps >= 500
    assert statistics["episode_count/cumulative"] > 0
    assert "episode_count/epoch" not in statistics
