"""Names every metric that a learner writes to TensorBoard and to `metrics.jsonl`: tag, unit and meaning.

The modules that measure take their tags from here, and docs/reference/metrics.md has the same lines (a test compares
the two). Not listed are the values of an environment's own events, `event/name[group]`: their declarations name them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        tag: The name under which it is written; the part before the slash groups it.
        unit: The unit of its values.
        meaning: A line of explanation.
        counts: True if it only grows while the learner lives: Prometheus calls it a counter.
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


# A record has the mean of every value over the updates since the record before. Names that end like these follow a
# schedule: a record has their last value.
_SCHEDULED: Final = ("learning_rate", "clip_range", "entropy_cost", "epsilon")
# Of values whose names end like these, norms and divergences, a record also has the largest.
_PEAKING: Final = ("grad_norm", "kl")


def is_scheduled(name: str) -> bool:
    """Returns True if a record has the last of a value that updates return, and not the mean, by the value's name."""
    return name.endswith(_SCHEDULED)


def has_largest(name: str) -> bool:
    """Returns True if a record also has the largest of a value that updates return, as `largest_of` names it."""
    return name.endswith(_PEAKING)


def largest_of(name: str) -> str:
    """Returns the name of the largest of the values of a name since the last record: `approx_kl_max`."""
    return f"{name}_max"


MEAN_RETURN: Final = Metric("train/mean_return", "reward", "mean return of the last 100 episodes; NaN before the first")
EPISODES: Final = Metric("train/episodes", "episodes", "episodes that have ended", counts=True)
UPDATES: Final = Metric("train/updates", "updates", "updates that were made", counts=True)
POLICY_VERSION: Final = Metric("train/policy_version", "version", "newest published policy version")

ENV_STEPS_PER_SECOND: Final = Metric("speed/env_steps_per_second", "steps/s", "environment steps, over the last 5 s")
UPDATES_PER_SECOND: Final = Metric("speed/updates_per_second", "updates/s", "updates, over the last 5 s")
WAITING_FRACTION: Final = Metric(
    "speed/waiting_fraction", "0 to 1", "share of its time that the trainer waited for batches, since the last record"
)
REPLAYED_FRACTION: Final = Metric(
    "speed/replayed_fraction",
    "0 to 1",
    "share of the updates that were replayed as CUDA graphs, since the last record; with `--cuda-graphs` only",
)

QUEUE_SIZE: Final = Metric("queue/size", "trajectories", "trajectories that wait for the trainer")
ASSEMBLY_TRAINER_FRACTION: Final = Metric(
    "assembly/trainer_fraction", "0 to 1", "share of its time that the trainer copied rollouts into batches itself"
)
ASSEMBLY_READY_FRACTION: Final = Metric(
    "assembly/ready_fraction",
    "0 to 1",
    "share of the batches that were ready when the trainer came; 0 without `--batch-ahead`",
)
POLICY_LAG_MEAN: Final = Metric(
    "queue/policy_lag_mean",
    "versions",
    "mean age of a trajectory's policy when it is learnt from, since the last record; NaN: none came",
)
POLICY_LAG_MAX: Final = Metric("queue/policy_lag_max", "versions", "largest such age since the last record")
STALE_TRAJECTORIES: Final = Metric(
    "queue/stale_trajectories",
    "trajectories",
    "dropped: beyond `--max-policy-lag`, or played for an earlier learner",
    counts=True,
)
DUPLICATE_ROLLOUTS: Final = Metric(
    "queue/duplicate_rollouts", "rollouts", "came again after a reconnect, and were dropped; harmless", counts=True
)
REJECTED_ROLLOUTS: Final = Metric(
    "queue/rejected_rollouts", "rollouts", "refused because they did not fit", counts=True
)
ACTORS_ALIVE: Final = Metric("actors/alive", "actors", "actors with an open stream")
DROPPED_EPISODES: Final = Metric(
    "actors/dropped_episodes",
    "episodes",
    "dropped because the environment raised in a step, with `--on-step-failure drop_episode`",
    counts=True,
)

EVAL_MEAN_RETURN: Final = Metric(
    "eval/mean_return",
    "reward",
    "mean return of an evaluation's episodes, at the steps when its policy was due; with `--eval-opponents` its rating",
)
EVAL_LIKELIEST_MEAN_RETURN: Final = Metric(
    "eval/likeliest_mean_return",
    "reward",
    "mean return with greedy actions; `--eval-actions both` only, whose better mean is `eval/mean_return`",
)
EVAL_DRAWN_MEAN_RETURN: Final = Metric(
    "eval/drawn_mean_return", "reward", "mean return with drawn actions; `--eval-actions both` only"
)
EVAL_SCORE_RANDOM: Final = Metric(
    "eval/score_random", "0 to 1", "games won against random actions, drawn ones half; with `--eval-opponents`"
)
EVAL_SCORE_FIRST: Final = Metric("eval/score_first", "0 to 1", "the same against the first policy that was evaluated")
EVAL_SCORE_EARLIER: Final = Metric(
    "eval/score_earlier", "0 to 1", "the same against the policies that were evaluated before this one"
)
EVAL_CI_LOW: Final = Metric("eval/ci_low", "reward", "lower end of its 95 % confidence interval, by Student's t")
EVAL_CI_HIGH: Final = Metric("eval/ci_high", "reward", "upper end of that interval")
EVAL_STD: Final = Metric("eval/std", "reward", "standard deviation of the episodes' returns")
EVAL_MEAN_LENGTH: Final = Metric("eval/mean_length", "steps", "mean length of the episodes")
EVAL_BEST_MEAN_RETURN: Final = Metric("eval/best_mean_return", "reward", "highest mean return of an evaluation so far")
EVAL_POLICY_VERSION: Final = Metric("eval/policy_version", "version", "version of the policy that was evaluated")
EVAL_EVALUATIONS: Final = Metric("eval/evaluations", "policies", "policies that were evaluated", counts=True)
EVAL_SKIPPED: Final = Metric(
    "eval/skipped",
    "policies",
    "policies that were due and not evaluated: no evaluator was free in time, or none of their episodes ended",
    counts=True,
)
EVAL_SECONDS: Final = Metric("eval/seconds", "seconds", "time that the episodes took")

REPLAY_SIZE: Final = Metric("replay/size", "entries", "entries in the replay buffer")
REPLAY_INSERTS: Final = Metric("replay/inserts", "entries", "entries that were inserted", counts=True)
REPLAY_SAMPLES: Final = Metric("replay/samples", "entries", "entries that were drawn", counts=True)
REPLAY_SAMPLES_PER_INSERT: Final = Metric(
    "replay/samples_per_insert",
    "ratio",
    "entries drawn for each that was inserted; below `--replay.samples-per-insert` by what filled the buffer at first",
)
REPLAY_WAITING: Final = Metric("replay/waiting", "callers", "callers that wait for the rate limiter now")
REPLAY_DIFFERENCE: Final = Metric(
    "replay/difference",
    "entries",
    "position of the rate limiter in its band: at the upper end actors wait, at the lower end the trainer does",
)
REPLAY_MIN_DIFF: Final = Metric("replay/min_diff", "entries", "lower end of that band")
REPLAY_MAX_DIFF: Final = Metric("replay/max_diff", "entries", "upper end of that band")
REPLAY_INSERT_WAIT_S: Final = Metric(
    "replay/insert_wait_s", "seconds", "time that rollouts were held back, in all", counts=True
)
REPLAY_SAMPLE_WAIT_S: Final = Metric(
    "replay/sample_wait_s", "seconds", "time that the trainer waited for a batch, in all", counts=True
)
REPLAY_BETA: Final = Metric(
    "replay/beta", "0 to 1", "share of the bias that importance weights correct; with prioritised replay"
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
    "in TensorBoard alone: histogram of these ages since the last record; its last bucket has 32 versions and more",
)
# Histograms, of which records of numbers have nothing.
HISTOGRAMS: Final = (POLICY_LAG,)

# The values of the algorithms' updates, under the names that these return; `is_scheduled` and `has_largest` say what a
# record has of them.
ALGORITHM_METRICS: Final = (
    Metric("impala/policy_loss", "1", "policy-gradient loss"),
    Metric("impala/value_loss", "reward^2", "half the squared error of the critic against V-trace's targets"),
    Metric("impala/entropy", "nats", "mean entropy of the policy; 0 is a policy that has stopped exploring"),
    Metric("impala/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("impala/policy_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("impala/critic_grad_norm", "1", "norm of the critic's gradient before clipping"),
    Metric("impala/critic_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("impala/mean_rho", "ratio", "mean importance ratio; far from 1, policies change faster than rollouts come"),
    Metric("impala/explained_variance", "up to 1", "share of the targets' variance that the critic explains"),
    Metric("impala/learning_rate", "1", "learning rate of the last update"),
    Metric("impala/entropy_cost", "1", "weight of the entropy bonus in the last update"),
    Metric(
        "impala/reward_factor",
        "1",
        "factor of clipped rewards: reward_scale, divided by the standard deviation of returns with normalize_rewards",
    ),
    Metric("ppo/policy_loss", "1", "mean clipped surrogate over the minibatches of the update, negated"),
    Metric("ppo/value_loss", "reward^2", "half the squared error of the critic against its targets"),
    Metric("ppo/entropy", "nats", "mean entropy of the policy; 0 is a policy that has stopped exploring"),
    Metric("ppo/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("ppo/policy_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("ppo/critic_grad_norm", "1", "norm of the critic's gradient before clipping"),
    Metric("ppo/critic_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric(
        "ppo/approx_kl",
        "nats",
        "distance from the policy that acted, mean over the minibatches of the last pass; 0.02 is much",
    ),
    Metric("ppo/approx_kl_max", "nats", "largest of the updates since the last record"),
    Metric("ppo/clip_fraction", "0 to 1", "share of steps whose importance weight is outside the clip range"),
    Metric("ppo/explained_variance", "up to 1", "share of the targets' variance that the critic explains"),
    Metric("ppo/learning_rate", "1", "learning rate of the last update"),
    Metric("ppo/clip_range", "ratio", "clip range of the last update"),
    Metric("ppo/entropy_cost", "1", "weight of the entropy bonus in the last update"),
    Metric(
        "ppo/reward_factor",
        "1",
        "factor of clipped rewards: reward_scale, divided by the standard deviation of returns with normalize_rewards",
    ),
    Metric("ppo/epochs", "1", "passes over the batch; fewer than n_epochs if target_kl stopped them"),
    Metric("appo/policy_loss", "1", "mean clipped surrogate over the minibatches of the update, negated"),
    Metric("appo/value_loss", "reward^2", "half the squared error of the critic against its targets"),
    Metric("appo/entropy", "nats", "mean entropy of the policy; 0 is a policy that has stopped exploring"),
    Metric("appo/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("appo/policy_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("appo/critic_grad_norm", "1", "norm of the critic's gradient before clipping"),
    Metric("appo/critic_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric(
        "appo/approx_kl",
        "nats",
        "distance from the policy that acted, mean over the minibatches of the last pass; 0.02 is much",
    ),
    Metric("appo/approx_kl_max", "nats", "largest of the updates since the last record"),
    Metric("appo/stale_kl", "nats", "that distance before the first pass: how far rollouts were behind the policy"),
    Metric("appo/stale_kl_max", "nats", "largest of the updates since the last record"),
    Metric("appo/clip_fraction", "0 to 1", "share of steps whose importance weight is outside the clip range"),
    Metric("appo/explained_variance", "up to 1", "share of the targets' variance that the critic explains"),
    Metric("appo/learning_rate", "1", "learning rate of the last update"),
    Metric("appo/clip_range", "ratio", "clip range of the last update"),
    Metric("appo/entropy_cost", "1", "weight of the entropy bonus in the last update"),
    Metric(
        "appo/reward_factor",
        "1",
        "factor of clipped rewards: reward_scale, divided by the standard deviation of returns with normalize_rewards",
    ),
    Metric("appo/epochs", "1", "passes over the batch; fewer than n_epochs if target_kl stopped them"),
    Metric("dqn/loss", "reward^2", "weighted loss of the TD errors"),
    Metric("dqn/mean_value", "reward", "mean value of the actions in the batch"),
    Metric("dqn/mean_td_error", "reward", "mean absolute TD error"),
    Metric("dqn/grad_norm", "1", "norm of the gradient before clipping"),
    Metric("dqn/grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("dqn/learning_rate", "1", "learning rate of the last update"),
    Metric("dqn/epsilon", "0 to 1", "base of the ladder of the actors' random actions, after the last update"),
    Metric("r2d2/loss", "h(reward)^2", "weighted loss of the TD errors of rescaled values"),
    Metric("r2d2/mean_value", "h(reward)", "mean value of the actions in the batch, rescaled"),
    Metric("r2d2/mean_td_error", "h(reward)", "mean absolute TD error of rescaled values"),
    Metric("r2d2/grad_norm", "1", "norm of the gradient before clipping"),
    Metric("r2d2/grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("r2d2/learning_rate", "1", "learning rate of the last update"),
    Metric("r2d2/epsilon", "0 to 1", "base of the ladder of the actors' random actions, after the last update"),
    Metric("sac/critic_loss", "reward^2", "half the squared error of the critics, summed over them"),
    Metric("sac/policy_loss", "1", "loss of the policy"),
    Metric("sac/entropy", "nats", "mean entropy of the policy"),
    Metric("sac/temperature", "reward/nat", "weight of the entropy, which is learnt"),
    Metric("sac/mean_value", "reward", "mean value of the actions in the batch"),
    Metric("sac/critic_grad_norm", "1", "norm of the critics' gradient before clipping"),
    Metric("sac/critic_grad_norm_max", "1", "largest of the updates since the last record"),
    Metric("sac/policy_grad_norm", "1", "norm of the policy's gradient before clipping"),
    Metric("sac/policy_grad_norm_max", "1", "largest of the updates since the last record"),
)

# The statistics of the events that every run has; `EpisodeEvents` and `TrainingEvents` declare them.
EVENT_METRICS: Final = (
    Metric("episode_return/mean", "reward", "mean return of the episodes since the last record"),
    Metric("episode_return/std", "reward", "its standard deviation"),
    Metric("episode_return/min", "reward", "lowest return"),
    Metric("episode_return/max", "reward", "highest return"),
    Metric("episode_length/mean", "steps", "mean length of the episodes since the last record"),
    Metric("episode_length/median", "steps", "median length"),
    Metric("episode_length/min", "steps", "shortest length"),
    Metric("episode_length/max", "steps", "longest length"),
    Metric("episode_length/cumulative", "steps", "steps of all episodes of the run", counts=True),
    Metric("episode_count/epoch", "episodes", "episodes since the last record"),
    Metric("episode_count/cumulative", "episodes", "episodes of the run", counts=True),
    Metric("learner_update/mean_s", "seconds", "mean time of an update since the last record"),
    Metric("learner_update/max_s", "seconds", "longest update since the last record"),
    Metric("learner_update/max_waited_s", "seconds", "longest wait for a batch since the last record"),
)
