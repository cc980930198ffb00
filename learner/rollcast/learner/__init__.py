"""Learning: distributed actors, rollout queue, batches, algorithms, the trainer and the command line."""

from typing import TYPE_CHECKING

from rollcast.services.exports import lazy_exports

if TYPE_CHECKING:
    from rollcast.actor.playing.evaluate import Evaluation, evaluate_policy
    from rollcast.learner.actors.base import DistributedActors
    from rollcast.learner.actors.docker import DockerDistributedActors
    from rollcast.learner.actors.remote import RemoteDistributedActors
    from rollcast.learner.actors.sequential import SequentialDistributedActors
    from rollcast.learner.actors.serving_options import ServingOptions
    from rollcast.learner.actors.subproc import SubprocDistributedActors
    from rollcast.learner.actors.with_buffer import BaseDistributedWorkersWithBuffer
    from rollcast.learner.algorithms.algorithm import Algorithm, Metrics
    from rollcast.learner.algorithms.appo import Appo
    from rollcast.learner.algorithms.appo_settings import AppoSettings
    from rollcast.learner.algorithms.critics import CriticEnsemble, ValueCritic
    from rollcast.learner.algorithms.dqn import Dqn
    from rollcast.learner.algorithms.dqn_settings import DqnSettings
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings
    from rollcast.learner.algorithms.independent_learners import IndependentLearners
    from rollcast.learner.algorithms.observation_statistics import observe_batch
    from rollcast.learner.algorithms.ppo import Ppo
    from rollcast.learner.algorithms.ppo_settings import PpoSettings
    from rollcast.learner.algorithms.r2d2 import R2d2
    from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
    from rollcast.learner.algorithms.sac import Sac
    from rollcast.learner.algorithms.sac_settings import SacSettings
    from rollcast.learner.algorithms.vtrace import VTraceReturns, vtrace
    from rollcast.learner.batch import Batch, BatchColumns
    from rollcast.learner.experience.experience import Experience, ExperienceSource, FreshExperience
    from rollcast.learner.experience.replayed import ReplayedExperience
    from rollcast.learner.replay.batches import to_batch
    from rollcast.learner.replay.buffer import ReplayBuffer
    from rollcast.learner.replay.settings import ReplaySettings
    from rollcast.learner.writers.json_lines import JsonLinesWriter
    from rollcast.learner.writers.tensorboard import TensorBoardWriter
    from rollcast.learner.writers.writer import MetricsWriter
    from rollcast.tools.cli import main

__all__ = [
    "Algorithm",
    "Appo",
    "AppoSettings",
    "BaseDistributedWorkersWithBuffer",
    "Batch",
    "BatchColumns",
    "CriticEnsemble",
    "DistributedActors",
    "DockerDistributedActors",
    "Dqn",
    "DqnSettings",
    "Evaluation",
    "Experience",
    "ExperienceSource",
    "FreshExperience",
    "Impala",
    "ImpalaSettings",
    "IndependentLearners",
    "JsonLinesWriter",
    "Metrics",
    "MetricsWriter",
    "Ppo",
    "PpoSettings",
    "R2d2",
    "R2d2Settings",
    "RemoteDistributedActors",
    "ReplayBuffer",
    "ReplaySettings",
    "ReplayedExperience",
    "Sac",
    "SacSettings",
    "SequentialDistributedActors",
    "ServingOptions",
    "SubprocDistributedActors",
    "TensorBoardWriter",
    "VTraceReturns",
    "ValueCritic",
    "evaluate_policy",
    "main",
    "observe_batch",
    "to_batch",
    "vtrace",
]

if not TYPE_CHECKING:  # else every misspelt name would have the type of `__getattr__`
    __getattr__, __dir__ = lazy_exports(__name__, extra="learner")
