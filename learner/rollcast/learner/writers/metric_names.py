"""Names every metric that a learner writes to TensorBoard and to `metrics.jsonl`: tag, unit and meaning.

The modules that measure take their tags from here, and docs/reference/metrics.md has the same lines (a test compares
the two). The list omits the values of an environment's own events, `event/name[group]`, whose declarations name them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        tag: The name in records; the part before the slash groups metrics.
        unit: The unit of its values.
        meaning: A line of explanation.
        counts: True for a counter in Prometheus, which only grows while the learner lives.
    """

    tag: str
    unit: str
    meaning: str
    counts: bool = False

    def of(self, key: str) -> str:
        """Returns the tag for one of several substeps: `replay/size` of `scout` is `replay/scout/size`."""
        group, _, name = self.tag.partition("/")
        return f"{group}/{key}/{name}"


def algorithm_tag(algorithm: str, name: str) -> str:
    """Returns the tag of a value that an algorithm's update returned.

    Args:
        algorithm: The algorithm's short name.
        name: The value's name; with several substeps `KEY/name`.
    """
    return f"{algorithm}/{name}"


# A record has the mean of every value over the updates since the previous record. Names with these endings follow a
# schedule: a record has their last value.
_SCHEDULED: Final = ("learning_rate", "clip_range", "entropy_cost", "epsilon")
# Of values whose names end like these, norms and divergences, a record also has the largest.
_PEAKING: Final = ("grad_norm", "kl")


def is_scheduled(name: str) -> bool:
    """Returns True if a record contains the last value with this name, instead of the mean over updates."""
    return name.endswith(_SCHEDULED)


def has_largest(name: str) -> bool:
    """Returns True if a record also contains the largest value with this name; see `largest_of`."""
    return name.endswith(_PEAKING)


def largest_of(name: str) -> str:
    """Returns the name of the largest value since the last record, such as `approx_kl_max`."""
    return f"{name}_max"


MEAN_RETURN: Final = Metric("train/mean_return", "reward", "mean return of the last 100 episodes; NaN before the first")
EPISODES: Final = Metric("train/episodes", "episodes", "episodes that have ended", counts=True)
UPDATES: Final = Metric("train/updates", "updates", "updates made", counts=True)
POLICY_VERSION: Final = Metric("train/policy_version", "version", "newest published policy version")
OBSERVATION_SIZE: Final = Metric(
    "train/observation_size",
    "1",
    "mean size of the largest number of an observation, in the first batch; the first record alone has it",
)

ENV_STEPS_PER_SECOND: Final = Metric("speed/env_steps_per_second", "steps/s", "environment steps, over the last 5 s")
UPDATES_PER_SECOND: Final = Metric("speed/updates_per_second", "updates/s", "updates, over the last 5 s")
WAITING_FRACTION: Final = Metric(
    "speed/waiting_fraction", "0 to 1", "share of time in which the trainer waited for batches, since the last record"
)
REPLAYED_FRACTION: Final = Metric(
    "speed/replayed_fraction",
    "0 to 1",
    "share of updates replayed as CUDA graphs since the last record; only with `--cuda-graphs`",
)

QUEUE_SIZE: Final = Metric("queue/size", "trajectories", "trajectories that wait for the trainer")
ASSEMBLY_TRAINER_FRACTION: Final = Metric(
    "assembly/trainer_fraction", "0 to 1", "share of time in which the trainer copied rollouts into batches itself"
)
ASSEMBLY_READY_FRACTION: Final = Metric(
    "assembly/ready_fraction",
    "0 to 1",
    "share of batches that were ready when the trainer needed them; 0 without `--batch-ahead`",
)
POLICY_LAG_MEAN: Final = Metric(
    "queue/policy_lag_mean",
    "versions",
    "mean policy lag of trajectories at their update, since the last record; NaN: no trajectories",
)
POLICY_LAG_MAX: Final = Metric(
    "queue/policy_lag_max", "versions", "largest policy lag of trajectories at their update, since the last record"
)
STALE_TRAJECTORIES: Final = Metric(
    "queue/stale_trajectories",
    "trajectories",
    "dropped trajectories: beyond `--max-policy-lag`, or played for an earlier learner",
    counts=True,
)
DUPLICATE_ROLLOUTS: Final = Metric(
    "queue/duplicate_rollouts", "rollouts", "rollouts sent again after a reconnect, and dropped; harmless", counts=True
)
REJECTED_ROLLOUTS: Final = Metric(
    "queue/rejected_rollouts", "rollouts", "invalid rollouts that the learner refused", counts=True
)
ACTORS_ALIVE: Final = Metric("actors/alive", "actors", "actors with an open stream")
DROPPED_EPISODES: Final = Metric(
    "actors/dropped_episodes",
    "episodes",
    "episodes dropped because the environment raised in a step (`--on-step-failure drop_episode`)",
    counts=True,
)

EVAL_MEAN_RETURN: Final = Metric(
    "eval/mean_return",
    "reward",
    "mean return of an evaluation's episodes; with `--eval-opponents`, its rating",
)
EVAL_LIKELIEST_MEAN_RETURN: Final = Metric(
    "eval/likeliest_mean_return",
    "reward",
    "mean return with greedy actions; only with `--eval-actions both`",
)
EVAL_DRAWN_MEAN_RETURN: Final = Metric(
    "eval/drawn_mean_return", "reward", "mean return with sampled actions; only with `--eval-actions both`"
)
EVAL_SCORE_RANDOM: Final = Metric(
    "eval/score_random",
    "0 to 1",
    "share of games won against random actions, with draws as half; only with `--eval-opponents`",
)
EVAL_SCORE_FIRST: Final = Metric("eval/score_first", "0 to 1", "share of games won against the first evaluated policy")
EVAL_SCORE_EARLIER: Final = Metric(
    "eval/score_earlier", "0 to 1", "share of games won against the policies evaluated before this one"
)
EVAL_CI_LOW: Final = Metric(
    "eval/ci_low", "reward", "lower end of the mean return's 95 % confidence interval, by Student's t"
)
EVAL_CI_HIGH: Final = Metric("eval/ci_high", "reward", "upper end of the mean return's 95 % confidence interval")
EVAL_STD: Final = Metric("eval/std", "reward", "standard deviation of the episodes' returns")
EVAL_MEAN_LENGTH: Final = Metric("eval/mean_length", "steps", "mean length of the episodes")
EVAL_BEST_MEAN_RETURN: Final = Metric("eval/best_mean_return", "reward", "highest mean return of an evaluation so far")
EVAL_POLICY_VERSION: Final = Metric("eval/policy_version", "version", "version of the evaluated policy")
EVAL_EVALUATIONS: Final = Metric("eval/evaluations", "policies", "evaluated policies", counts=True)
EVAL_SKIPPED: Final = Metric(
    "eval/skipped",
    "policies",
    "due policies without evaluation: no evaluator was free in time, or no episode ended",
    counts=True,
)
EVAL_SECONDS: Final = Metric("eval/seconds", "seconds", "duration of the episodes")

REPLAY_SIZE: Final = Metric("replay/size", "entries", "entries in the replay buffer")
REPLAY_INSERTS: Final = Metric("replay/inserts", "entries", "inserted entries", counts=True)
REPLAY_SAMPLES: Final = Metric("replay/samples", "entries", "sampled entries", counts=True)
REPLAY_SAMPLES_PER_INSERT: Final = Metric(
    "replay/samples_per_insert",
    "ratio",
    "samples for each inserted entry; the initial filling keeps it below `--replay.samples-per-insert`",
)
REPLAY_WAITING: Final = Metric("replay/waiting", "callers", "callers that currently wait for the rate limiter")
REPLAY_DIFFERENCE: Final = Metric(
    "replay/difference",
    "entries",
    "position of the rate limiter: at `max_diff` actors wait, at `min_diff` the trainer waits",
)
REPLAY_MIN_DIFF: Final = Metric("replay/min_diff", "entries", "lowest position of the rate limiter")
REPLAY_MAX_DIFF: Final = Metric("replay/max_diff", "entries", "highest position of the rate limiter")
REPLAY_INSERT_WAIT_S: Final = Metric(
    "replay/insert_wait_s", "seconds", "total time for which rollouts were held back", counts=True
)
REPLAY_SAMPLE_WAIT_S: Final = Metric(
    "replay/sample_wait_s", "seconds", "total time for which the trainer waited for batches", counts=True
)
REPLAY_BETA: Final = Metric(
    "replay/beta", "0 to 1", "share of the bias that importance weights correct; only with prioritised replay"
)

DURABLE_BYTES: Final = Metric("durable/bytes", "bytes", "size of the write-ahead log")
DURABLE_SEGMENTS: Final = Metric("durable/segments", "files", "files of the write-ahead log")
DURABLE_COMMIT_MS: Final = Metric(
    "durable/commit_ms", "milliseconds", "mean time of a write and its `fdatasync`, since the last record"
)
DURABLE_ROLLOUTS_PER_COMMIT: Final = Metric(
    "durable/rollouts_per_commit", "rollouts", "mean number of rollouts per write, since the last record"
)

# All of those above, in their order.
METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

POLICY_LAG: Final = Metric(
    "queue/policy_lag",
    "trajectories",
    "histogram of policy lag since the last record, in TensorBoard only; last bucket: 32 or more",
)
# Histograms, of which records of numbers have nothing.
HISTOGRAMS: Final = (POLICY_LAG,)

# The values of the algorithms' updates, under the names that these return; `is_scheduled` and `has_largest` say what a
# record has of them.
ALGORITHM_METRICS: Final = (
    Metric("impala/policy_loss", "1", "policy-gradient loss"),
    Metric("impala/value_loss", "reward^2", "half the squared error of the critic against V-trace's targets"),
    Metric("impala/entropy", "nats", "mean entropy of the policy; at 0 the policy no longer explores"),
    Metric("impala/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("impala/policy_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric("impala/critic_grad_norm", "1", "norm of the critic's gradient before clipping"),
    Metric("impala/critic_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric(
        "impala/mean_rho", "ratio", "mean importance ratio; far from 1 if policies change faster than rollouts arrive"
    ),
    Metric("impala/explained_variance", "up to 1", "share of the targets' variance that the critic explains"),
    Metric("impala/learning_rate", "1", "learning rate of the last update"),
    Metric("impala/entropy_cost", "1", "weight of the entropy bonus in the last update"),
    Metric(
        "impala/reward_factor",
        "1",
        "factor of clipped rewards: reward_scale; with normalize_rewards, divided by the returns' standard deviation",
    ),
    Metric("ppo/policy_loss", "1", "mean clipped surrogate over the minibatches of the update, negated"),
    Metric("ppo/value_loss", "reward^2", "half the squared error of the critic against its targets"),
    Metric("ppo/entropy", "nats", "mean entropy of the policy; at 0 the policy no longer explores"),
    Metric("ppo/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("ppo/policy_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric("ppo/critic_grad_norm", "1", "norm of the critic's gradient before clipping"),
    Metric("ppo/critic_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric(
        "ppo/approx_kl",
        "nats",
        "mean KL divergence from the policy that acted, over the last pass; 0.02 is large",
    ),
    Metric("ppo/approx_kl_max", "nats", "largest value of an update since the last record"),
    Metric("ppo/clip_fraction", "0 to 1", "share of steps whose importance weight is outside the clip range"),
    Metric("ppo/explained_variance", "up to 1", "share of the targets' variance that the critic explains"),
    Metric("ppo/learning_rate", "1", "learning rate of the last update"),
    Metric("ppo/clip_range", "ratio", "clip range of the last update"),
    Metric("ppo/entropy_cost", "1", "weight of the entropy bonus in the last update"),
    Metric(
        "ppo/reward_factor",
        "1",
        "factor of clipped rewards: reward_scale; with normalize_rewards, divided by the returns' standard deviation",
    ),
    Metric("ppo/epochs", "1", "passes over the batch; fewer than n_epochs if target_kl stopped them"),
    Metric("appo/policy_loss", "1", "mean clipped surrogate over the minibatches of the update, negated"),
    Metric("appo/value_loss", "reward^2", "half the squared error of the critic against its targets"),
    Metric("appo/entropy", "nats", "mean entropy of the policy; at 0 the policy no longer explores"),
    Metric("appo/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("appo/policy_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric("appo/critic_grad_norm", "1", "norm of the critic's gradient before clipping"),
    Metric("appo/critic_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric(
        "appo/approx_kl",
        "nats",
        "mean KL divergence from the policy that acted, over the last pass; 0.02 is large",
    ),
    Metric("appo/approx_kl_max", "nats", "largest value of an update since the last record"),
    Metric(
        "appo/stale_kl", "nats", "KL divergence from the policy that acted, before the first pass: drift by lag alone"
    ),
    Metric("appo/stale_kl_max", "nats", "largest value of an update since the last record"),
    Metric("appo/clip_fraction", "0 to 1", "share of steps whose importance weight is outside the clip range"),
    Metric("appo/explained_variance", "up to 1", "share of the targets' variance that the critic explains"),
    Metric("appo/learning_rate", "1", "learning rate of the last update"),
    Metric("appo/clip_range", "ratio", "clip range of the last update"),
    Metric("appo/entropy_cost", "1", "weight of the entropy bonus in the last update"),
    Metric(
        "appo/reward_factor",
        "1",
        "factor of clipped rewards: reward_scale; with normalize_rewards, divided by the returns' standard deviation",
    ),
    Metric("appo/epochs", "1", "passes over the batch; fewer than n_epochs if target_kl stopped them"),
    Metric("dqn/loss", "reward^2", "weighted loss of the TD errors"),
    Metric("dqn/mean_value", "reward", "mean value of the actions in the batch"),
    Metric("dqn/mean_td_error", "reward", "mean absolute TD error"),
    Metric("dqn/grad_norm", "1", "norm of the gradient before clipping"),
    Metric("dqn/grad_norm_max", "1", "largest value of an update since the last record"),
    Metric("dqn/learning_rate", "1", "learning rate of the last update"),
    Metric("dqn/epsilon", "0 to 1", "base of the actors' exploration rates (epsilon ladder), after the last update"),
    Metric("r2d2/loss", "h(reward)^2", "weighted loss of the TD errors of rescaled values"),
    Metric("r2d2/mean_value", "h(reward)", "mean value of the actions in the batch, rescaled"),
    Metric("r2d2/mean_td_error", "h(reward)", "mean absolute TD error of rescaled values"),
    Metric("r2d2/grad_norm", "1", "norm of the gradient before clipping"),
    Metric("r2d2/grad_norm_max", "1", "largest value of an update since the last record"),
    Metric("r2d2/learning_rate", "1", "learning rate of the last update"),
    Metric("r2d2/epsilon", "0 to 1", "base of the actors' exploration rates (epsilon ladder), after the last update"),
    Metric("sac/critic_loss", "reward^2", "half the squared error of the critics, summed over all critics"),
    Metric("sac/policy_loss", "1", "loss of the policy"),
    Metric("sac/entropy", "nats", "mean entropy of the policy"),
    Metric("sac/temperature", "reward/nat", "learnt weight of the entropy"),
    Metric("sac/mean_value", "reward", "mean value of the actions in the batch"),
    Metric("sac/critic_grad_norm", "1", "norm of the critics' gradient before clipping"),
    Metric("sac/critic_grad_norm_max", "1", "largest value of an update since the last record"),
    Metric("sac/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("sac/policy_grad_norm_max", "1", "largest value of an update since the last record"),
)

# The statistics of the events that every run has; `EpisodeEvents` and `TrainingEvents` declare them.
EVENT_METRICS: Final = (
    Metric("episode_return/mean", "reward", "mean return of the episodes since the last record"),
    Metric("episode_return/std", "reward", "standard deviation of the episodes' returns"),
    Metric("episode_return/min", "reward", "lowest return of an episode"),
    Metric("episode_return/max", "reward", "highest return of an episode"),
    Metric("episode_length/mean", "steps", "mean length of the episodes since the last record"),
    Metric("episode_length/median", "steps", "median length of the episodes"),
    Metric("episode_length/min", "steps", "length of the shortest episode"),
    Metric("episode_length/max", "steps", "length of the longest episode"),
    Metric("episode_length/cumulative", "steps", "steps of all episodes of the run", counts=True),
    Metric("episode_count/epoch", "episodes", "episodes since the last record"),
    Metric("episode_count/cumulative", "episodes", "episodes of the run", counts=True),
    Metric("learner_update/mean_s", "seconds", "mean time of an update since the last record"),
    Metric("learner_update/max_s", "seconds", "longest update since the last record"),
    Metric("learner_update/max_waited_s", "seconds", "longest wait for a batch since the last record"),
)
