"""What differs from algorithm to algorithm among the settings they share. Imports neither torch nor grpc."""

from typing import Any, TypeVar

from pydantic import BaseModel

from rollcast.actor.entry_points import split_entry_point
from rollcast.services.errors import ConfigurationError

# Off-policy algorithms learn from short rollouts as soon as they come, from large batches of transitions. SAC makes an
# update for every environment step, as in the paper: 256 samples an insert at a batch of 256. DQN makes one for every
# four (Mnih et al. 2015), with three steps folded into a transition and prioritised replay (Hessel et al. 2018).
ALGORITHM_DEFAULTS: dict[str, dict[str, Any]] = {
    "impala": {},
    "sac": {
        "hidden_sizes": (256, 256),
        "activation": "relu",
        "n_rollout_steps": 8,
        "envs_per_actor": 1,
        "batch_size": 256,
        "updates_per_broadcast": 10,
        "total_steps": 1_000_000,
        "replay": {"capacity": 1_000_000, "samples_per_insert": 256.0, "min_size": 1000},
    },
    "dqn": {
        "hidden_sizes": (64, 64),
        "activation": "relu",
        "n_rollout_steps": 16,
        "envs_per_actor": 4,
        "batch_size": 128,
        "updates_per_broadcast": 10,
        "total_steps": 1_000_000,
        "replay": {
            "capacity": 100_000,
            "sampler": "prioritized",
            "n_step": 3,
            "samples_per_insert": 32.0,
            "min_size": 1000,
        },
    },
}

# The nested settings that an algorithm reads; one of one's own may read any of them.
ALGORITHM_GROUPS: dict[str, frozenset[str]] = {
    "impala": frozenset({"impala"}),
    "sac": frozenset({"sac", "replay"}),
    "dqn": frozenset({"dqn", "replay"}),
}

# An algorithm of one's own has its settings in `algorithm_kwargs`, and may learn from a replay buffer.
_GROUPS_OF_ONES_OWN = frozenset({"replay"})

Settings = TypeVar("Settings", bound=BaseModel)


def foreign_groups(algorithm: str) -> frozenset[str]:
    """Returns the nested settings that only other algorithms read."""
    every = frozenset().union(*ALGORITHM_GROUPS.values())
    return every - ALGORITHM_GROUPS.get(algorithm, _GROUPS_OF_ONES_OWN if is_own(algorithm) else every)


def is_own(algorithm: str) -> bool:
    """Tells a factory's name, `package.module:factory`, from the names of the algorithms that come with rollcast."""
    return ":" in algorithm


def short_name(algorithm: str) -> str:
    """Returns what metrics and folders are named after: a factory's own name, without its module."""
    return algorithm.rpartition(":")[2]


def check_algorithm(algorithm: str) -> str:
    """Checks the name of an algorithm, without importing anything.

    Raises:
        ConfigurationError: It is none that comes with rollcast, and no `package.module:factory`.
    """
    if algorithm not in ALGORITHM_DEFAULTS:
        if not is_own(algorithm):
            raise ConfigurationError(
                f"there is no such algorithm; expected {', '.join(ALGORITHM_DEFAULTS)}, or package.module:factory for "
                "one's own"
            )
        split_entry_point(algorithm)
    return algorithm


def with_algorithm_defaults(settings: Settings, algorithm: str) -> Settings:
    """Replaces the defaults of fields that nobody has set by those of the algorithm.

    Args:
        settings: As they were read; fields that the process has not are left out.
        algorithm: Its name.
    """
    return _with_defaults(settings, ALGORITHM_DEFAULTS.get(algorithm, {}))


def _with_defaults(settings: Settings, defaults: dict[str, Any]) -> Settings:
    fields = type(settings).model_fields
    update = {}
    for name, default in defaults.items():
        if name not in fields:
            continue
        if isinstance(default, dict):
            update[name] = _with_defaults(getattr(settings, name), default)
        elif name not in settings.model_fields_set:
            update[name] = default
    return settings.model_copy(update=update)
