"""Acting: environments, policies, the rollout worker and the actor process."""

from typing import TYPE_CHECKING

from rollcast.services.exports import lazy_exports

if TYPE_CHECKING:
    from rollcast.actor.dialling.remote_vec_env import RemoteVecEnv
    from rollcast.actor.environments.action_mask import ActionMaskFromInfo
    from rollcast.actor.environments.executed_actions import ExecutedActions
    from rollcast.actor.environments.failures import EnvironmentFailedError, EnvironmentLostError
    from rollcast.actor.environments.make import EnvironmentFactory
    from rollcast.actor.environments.structured import ActorId, Ended, SingleAgentEnv, StructuredEnv, Turn
    from rollcast.actor.loaded_policy import LoadedPolicy, load_policy
    from rollcast.actor.policies.base import Policy
    from rollcast.actor.policies.make import make_policy
    from rollcast.actor.policies.random_acting import RandomPolicy
    from rollcast.actor.policies.trainable import TorchPolicy
    from rollcast.actor.seeds import derive_seeds
    from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
    from rollcast.actor.statistics.events import (
        EpisodeEvents,
        LogStatsLevel,
        define_episode_stats,
        define_epoch_stats,
        define_stats_grouping,
        define_step_stats,
    )
    from rollcast.actor.statistics.firing import FiresEvents
    from rollcast.actor.vector.make import environment_spaces, make_vector_env, probe_spaces
    from rollcast.actor.vector.measure import make_fastest_vector_env
    from rollcast.actor.vector.sequential import SequentialVectorEnv
    from rollcast.actor.vector.structured import StructuredVectorEnv
    from rollcast.actor.vector.subproc import SubprocVectorEnv
    from rollcast.actor.workers.flat import RolloutWorker
    from rollcast.actor.workers.make import make_worker
    from rollcast.actor.workers.structured import StructuredRolloutWorker

__all__ = [
    "ActionMaskFromInfo",
    "ActorId",
    "Ended",
    "EnvironmentFactory",
    "EnvironmentFailedError",
    "EnvironmentLostError",
    "EpisodeEvents",
    "EpochStatsAggregator",
    "ExecutedActions",
    "FiresEvents",
    "LoadedPolicy",
    "LogStatsLevel",
    "Policy",
    "RandomPolicy",
    "RemoteVecEnv",
    "RolloutWorker",
    "SequentialVectorEnv",
    "SingleAgentEnv",
    "StructuredEnv",
    "StructuredRolloutWorker",
    "StructuredVectorEnv",
    "SubprocVectorEnv",
    "TorchPolicy",
    "Turn",
    "define_episode_stats",
    "define_epoch_stats",
    "define_stats_grouping",
    "define_step_stats",
    "derive_seeds",
    "environment_spaces",
    "load_policy",
    "make_fastest_vector_env",
    "make_policy",
    "make_vector_env",
    "make_worker",
    "probe_spaces",
]

if not TYPE_CHECKING:  # otherwise every misspelt name would have the type of `__getattr__`
    __getattr__, __dir__ = lazy_exports(__name__, extra="torch")
