"""The defaults of shared settings for each algorithm. Imports neither torch nor grpc."""

from typing import Any, Final, TypeVar

from pydantic import BaseModel

from rollcast.actor.entry_points import split_entry_point
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import AUTO_NETWORK, IMAGE_NETWORKS

# The one that learns most tasks with its defaults: `benchmarks.first_contact`.
DEFAULT_ALGORITHM: Final = "ppo"

# The default of older runs, which continue with it.
FORMER_DEFAULT: Final = "impala"

# Off-policy algorithms learn from large batches of transitions and want short rollouts, which arrive sooner. SAC makes
# an update for every environment step, as in the paper: 256 samples per insert at a batch of 256. DQN makes one for
# every four (Mnih et al. 2015), with 3-step transitions and prioritised replay (Hessel et al. 2018). R2D2's entries are
# sequences, of which the first quarter warms the memory up; it makes an update for every ten steps.
ALGORITHM_DEFAULTS: dict[str, dict[str, Any]] = {
    "impala": {},
    "ppo": {"n_rollout_steps": 128, "total_steps": 1_000_000},
    "appo": {"n_rollout_steps": 128, "total_steps": 1_000_000},
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
    "r2d2": {
        "hidden_sizes": (64,),
        "activation": "relu",
        "recurrence": "lstm",
        "n_rollout_steps": 40,
        "envs_per_actor": 4,
        "batch_size": 16,
        "updates_per_broadcast": 10,
        "total_steps": 1_000_000,
        "replay": {
            "entry": "rollouts",
            "capacity": 10_000,
            "sampler": "prioritized",
            "burn_in": 10,
            "sequence_length": 30,
            "samples_per_insert": 64.0,
            "min_size": 100,
        },
    },
}

# With `--atari` and a built-in network without a memory: one torso for policy and critic, as in the papers.
TORSO_DEFAULTS: dict[str, dict[str, Any]] = {name: {name: {"share_torso": True}} for name in ("impala", "ppo", "appo")}

# Before them, with `--atari`: those of the papers. One frame does not show where things move, and games differ in their
# points by thousands. IMPALA: Espeholt et al. 2018, table G.1. PPO and APPO: Schulman et al. 2017, table 5, with four
# passes as in rl-baselines3-zoo. DQN and R2D2: Hessel et al. 2018, table 1.
_FRAMES: dict[str, Any] = {"frame_stack": 4}
_LONG: dict[str, Any] = {"total_steps": 10_000_000}
_CLIPPED_SURROGATE: dict[str, Any] = {
    "learning_rate": 2.5e-4,
    "n_epochs": 4,
    "minibatch_steps": 256,
    "clip_range": 0.1,
    "clip_range_schedule": "linear",
    "entropy_cost": 0.01,
    "reward_clip": "unit",
}
_Q_LEARNING: dict[str, Any] = {
    "learning_rate": 6.25e-5,
    "adam_epsilon": 1.5e-4,
    "target_tau": 1.0,
    "target_update_interval": 2000,
}
ATARI_DEFAULTS: dict[str, dict[str, Any]] = {
    "impala": {
        **_FRAMES,
        "impala": {
            # not the paper's 6e-4: that is RMSProp's, and Adam's steps of it left no ReLU alive in Pong
            "learning_rate": 2e-4,
            "discount": 0.99,
            "entropy_cost": 0.01,
            "reward_clip": "unit",
            "normalize_rewards": False,
        },
    },
    "ppo": {**_FRAMES, **_LONG, "ppo": _CLIPPED_SURROGATE},
    "appo": {**_FRAMES, **_LONG, "appo": _CLIPPED_SURROGATE},
    "dqn": {
        **_FRAMES,
        **_LONG,
        "batch_size": 32,
        "dqn": _Q_LEARNING,
        "replay": {"samples_per_insert": 8.0, "min_size": 20_000, "reward_clip": "unit"},
    },
    # of single frames: the memory sees what moves; of whole points, which its values are rescaled for
    "r2d2": {**_LONG, "r2d2": _Q_LEARNING},
    "sac": {**_FRAMES, **_LONG, "replay": {"reward_clip": "unit"}},
}

# The groups of settings that each algorithm reads.
ALGORITHM_GROUPS: dict[str, frozenset[str]] = {
    "impala": frozenset({"impala"}),
    "ppo": frozenset({"ppo"}),
    "appo": frozenset({"appo"}),
    "sac": frozenset({"sac", "replay"}),
    "dqn": frozenset({"dqn", "replay"}),
    "r2d2": frozenset({"r2d2", "replay"}),
}

# A custom algorithm has its settings in `algorithm_kwargs`, and may learn from a replay buffer.
_GROUPS_OF_ONES_OWN = frozenset({"replay"})

Settings = TypeVar("Settings", bound=BaseModel)


def foreign_groups(algorithm: str) -> frozenset[str]:
    """Returns the groups of settings that only other algorithms read."""
    every = frozenset().union(*ALGORITHM_GROUPS.values())
    return every - groups_of(algorithm) if algorithm in ALGORITHM_GROUPS or is_own(algorithm) else frozenset()


def groups_of(algorithm: str) -> frozenset[str]:
    """Returns the groups of settings that an algorithm reads."""
    return ALGORITHM_GROUPS.get(algorithm, _GROUPS_OF_ONES_OWN)


def readers_of(group: str) -> str:
    """Returns the built-in algorithms that read a group of settings, as text: `"sac, dqn or r2d2"`."""
    *others, last = [name for name, groups in ALGORITHM_GROUPS.items() if group in groups]
    return f"{', '.join(others)} or {last}" if others else last


def if_default(settings: BaseModel) -> str:
    """Returns `" (the default)"`, for messages after the algorithm's name, if no setting chose one; else `""`."""
    return "" if "algorithm" in settings.model_fields_set else " (the default)"


def is_own(algorithm: str) -> bool:
    """Returns True for a custom algorithm, `package.module:factory`; False for the name of a built-in algorithm."""
    return ":" in algorithm


def short_name(algorithm: str) -> str:
    """Returns the name for metrics and folders: the algorithm's, or the factory's without its module."""
    return algorithm.rpartition(":")[2]


def check_algorithm(algorithm: str) -> str:
    """Checks the name of an algorithm, without imports.

    Raises:
        ConfigurationError: If it is neither a built-in algorithm nor `package.module:factory`.
    """
    if algorithm not in ALGORITHM_DEFAULTS:
        if not is_own(algorithm):
            raise ConfigurationError(
                f"the algorithm does not exist; expected {', '.join(ALGORITHM_DEFAULTS)}, or package.module:factory "
                "for your own"
            )
        split_entry_point(algorithm)
    return algorithm


def with_algorithm_defaults(settings: Settings, algorithm: str) -> Settings:
    """Returns the settings with the defaults of the algorithm, and of Atari, in unset fields.

    Args:
        settings: The settings from the user. Defaults for missing fields are ignored.
        algorithm: The algorithm's name.
    """
    # The most specific defaults come first, because later ones do not replace set fields.
    if getattr(settings, "atari", False):
        has_torso = getattr(settings, "network", AUTO_NETWORK) in (AUTO_NETWORK, *IMAGE_NETWORKS)
        if has_torso and getattr(settings, "recurrence", "none") == "none":
            settings = _with_defaults(settings, TORSO_DEFAULTS.get(algorithm, {}))
        settings = _with_defaults(settings, ATARI_DEFAULTS.get(algorithm, _FRAMES))
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
