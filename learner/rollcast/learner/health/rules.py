"""The rules that find problems of training: functions from the records of a run to findings.

Each rule is a function of a `RunRecords`, and names its source. It finds no problem in runs with too few records. It
also finds none if returns are far above those of the first episodes, unless the problem would stop that rise. Rules
match the last part of a tag, so they apply to every algorithm and substep: `impala/entropy`, `ppo/scout/entropy`.
Thresholds are wide: findings are far outside the range of healthy runs.

Sources that several rules share:

- Schulman 2016: "The Nuts and Bolts of Deep RL Research", the talk, with its policy diagnostics.
- Huang et al. 2022: "The 37 Implementation Details of Proximal Policy Optimization"; detail 12 are debug variables.
- Andrychowicz et al. 2021: "What Matters for On-Policy Deep Actor-Critic Methods?".
- SB3: the page "Logger" of Stable-Baselines3's documentation, and its page "Reinforcement Learning Tips and Tricks".
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from rollcast.learner.reward_bounds import MAX_NORMALIZED_REWARD, clipped_reward
from rollcast.learner.runs.goal import goal_of
from rollcast.learner.writers.metric_names import (
    ACTORS_ALIVE,
    DROPPED_EPISODES,
    ENV_STEPS_PER_SECOND,
    EPISODES,
    EVAL_MEAN_RETURN,
    MEAN_RETURN,
    OBSERVATION_SIZE,
    REPLAY_INSERTS,
    REPLAY_SAMPLES,
    UPDATES,
    WAITING_FRACTION,
)
from rollcast.services.spaces.spaces import EnvironmentSpaces, numeric_leaves
from rollcast.services.status.numbers import counted, decimal
from rollcast.services.status.status import LearningFinding

# A record: values by tag, and `env_steps`; a value that is not finite is None or NaN.
Record: TypeAlias = Mapping[str, Any]

# The number of episodes before any judgement.
MIN_EPISODES: Final = 100
# A rule uses the newer half of a run, and needs this many records and updates in it.
_MIN_RECORDS: Final = 8
_MIN_UPDATES: Final = 8
# The updates that a critic may need before it learns from noisy returns, as with several agents.
_MIN_CRITIC_UPDATES: Final = 20
# The share of those records for which the condition must be true.
_MOSTLY: Final = 0.8
# The episodes of `train/mean_return`.
_MEAN_EPISODES: Final = 100
# The largest number of findings, because an environment may have many substeps and leaves.
_MAX_FINDINGS: Final = 16
# Bounds of spaces above this stand for infinity: gymnasium's CartPole has the largest float.
_UNBOUNDED: Final = 1e30
# Observations above this are too large for a network.
_LARGE_OBSERVATION: Final = 100.0
# The steps of one environment without the end of an episode that are too many: in any run; in half of a run.
_ENDLESS: Final = 100_000
_LONG: Final = 2_000
# The algorithms that learn from a step once or a few times, and the steps a second below which steps are dear.
_LEARN_ONCE: Final = ("impala", "ppo", "appo")
_DEAR: Final = 100.0
# The speed of steps is known early. The first record's time includes the start of the actors.
_MIN_SPEEDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """The records of a run, and the further input of the rules.

    Attributes:
        records: The records of training, and possibly of evaluations, oldest first.
        settings: The run's settings by their full names (`ppo.learning_rate`); empty: unknown.
        spaces: The environment's spaces; None: unknown.
    """

    records: Sequence[Record]
    settings: Mapping[str, Any]
    spaces: EnvironmentSpaces | None = None

    @property
    def algorithm(self) -> str:
        """The algorithm's name, with which the names of its options begin."""
        return str(self.settings.get("algorithm", ""))

    @property
    def episodes(self) -> int:
        """The number of finished episodes."""
        return int(self.newest(EPISODES.tag) or 0)

    def newest(self, tag: str) -> float | None:
        """Returns the newest finite value of a tag; None without a value."""
        return next((value for record in reversed(self.records) if (value := _finite(record, tag)) is not None), None)

    def setting(self, name: str) -> float | None:
        """Returns a numeric setting of the algorithm; None if the algorithm does not have it."""
        value = self.settings.get(f"{self.algorithm}.{name}")
        return float(value) if isinstance(value, int | float) else None

    def tags(self, name: str) -> list[str]:
        """Returns the tags in the records whose last part is `name`: `ppo/entropy` for `entropy`."""
        return sorted(tag for tag in set[str]().union(*self.records) if tag.endswith(f"/{name}"))

    def series(self, tag: str, *, last: float = 1.0) -> "Series":
        """Returns the finite values of a tag.

        Args:
            tag: The tag.
            last: The share of updates to include, counted from the end, such as 0.5.
        """
        updates = self.newest(UPDATES.tag) or 0.0
        rows = [
            (record["env_steps"], record[UPDATES.tag], value)
            for record in self.records
            if (value := _finite(record, tag)) is not None and _finite(record, UPDATES.tag) is not None
        ]
        rows = [row for row in rows if row[1] >= (1.0 - last) * updates]
        return Series(*np.array(rows, np.float64).reshape(-1, 3).T)

    def advice(self, *tries: str, otherwise: str) -> str:
        """Returns "try A, B or C" with the options of the algorithm; `otherwise` if the algorithm has none.

        Args:
            tries: Texts with the name of a setting in braces: "a lower {learning_rate}".
            otherwise: The advice without such an option.
        """
        told = []
        for text in tries:
            before, _, rest = text.partition("{")
            name, _, after = rest.partition("}")
            full = name if name in self.settings else f"{self.algorithm}.{name}"
            if full in self.settings and self.settings[full] is not True:
                told.append(f"{before}--{full.replace('_', '-')}{after}")
        if not told:
            return otherwise
        return f"try {', '.join(told[:-1])}{' or ' if len(told) > 1 else ''}{told[-1]}"


@dataclass(frozen=True, slots=True)
class Series:
    """The values of a tag.

    Attributes:
        env_steps: float64 `[N]`.
        updates: float64 `[N]`, not decreasing.
        values: float64 `[N]`, finite.
    """

    env_steps: NDArray[np.float64]
    updates: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def is_long(self) -> bool:
        """True if there are enough values for a finding."""
        return len(self.values) >= _MIN_RECORDS and self.n_updates >= _MIN_UPDATES

    @property
    def n_updates(self) -> int:
        """The number of updates from the first to the last value."""
        return int(self.updates[-1] - self.updates[0]) if len(self.updates) else 0

    def mostly(self, where: NDArray[np.bool_]) -> bool:
        """Returns whether there are enough values, and a condition is true for most values.

        Args:
            where: bool `[N]`.
        """
        return self.is_long and bool(where.mean() >= _MOSTLY)

    @property
    def median(self) -> float:
        """The median of the values, which must not be empty."""
        return float(np.median(self.values))


@dataclass(frozen=True, slots=True)
class FirstReturns:
    """The returns of the first episodes.

    Attributes:
        mean: The mean of these returns.
        std: The standard deviation of these returns.
        n: The number of these episodes: whole records, about 100 episodes if the run has as many.
    """

    mean: float
    std: float
    n: int

    def bound(self, n_errors: float) -> float:
        """Returns the mean of 100 later episodes that is `n_errors` standard errors, at least 5 %, away from `mean`."""
        error = self.std * math.sqrt(1 / _MEAN_EPISODES + 1 / self.n)
        return self.mean + math.copysign(max(abs(n_errors) * error, 0.05 * abs(self.mean)), n_errors)


def first_returns(run: RunRecords) -> FirstReturns | None:
    """Returns the returns of the first hundred episodes; None if no record has any."""
    means: list[float] = []
    stds: list[float] = []
    counts: list[int] = []
    for record in run.records:
        mean, n = _finite(record, "episode_return/mean"), int(_finite(record, "episode_count/epoch") or 0)
        if mean is None or n < 1:
            continue
        if sum(counts) >= MIN_EPISODES or (sum(counts) >= MIN_EPISODES / 10 and sum(counts) + n > 2 * MIN_EPISODES):
            break
        means.append(mean)
        stds.append(_finite(record, "episode_return/std") or 0.0)
        counts.append(n)
    if not counts:
        return None
    mean = float(np.average(means, weights=counts))
    variance = float(np.average(np.square(stds) + np.square(np.array(means) - mean), weights=counts))
    return FirstReturns(mean, math.sqrt(variance), sum(counts))


def has_learnt(run: RunRecords) -> bool:
    """Returns whether a mean return in the last quarter exceeds the first episodes' mean by four standard errors."""
    first, lately = first_returns(run), run.series(MEAN_RETURN.tag, last=0.25).values
    return first is not None and bool((lately > first.bound(4.0)).any())


def returns_fell(run: RunRecords) -> Iterator[LearningFinding]:
    """Returns are below the returns of the first hundred episodes, which a random policy played.

    The difference is three standard errors of both means. Source: Henderson et al. 2018, "Deep Reinforcement Learning
    That Matters", on differences of mean returns; Schulman 2016 (a policy that collapses early does not recover).
    """
    first = first_returns(run)
    if first is None or run.episodes < 3 * MIN_EPISODES:
        return
    lately, bound = run.series(MEAN_RETURN.tag, last=0.5), first.bound(-3.0)
    if lately.mostly(lately.values < bound) and lately.values[-1] < bound:
        yield LearningFinding(
            "returns-fell",
            f"the mean return is {decimal(lately.values[-1])}, and was {decimal(first.mean)} in the first {first.n} "
            "episodes: the policy is worse than at random",
            run.advice(
                *_short_sight(run),
                "a lower {learning_rate}",
                "a lower {policy_learning_rate}",
                "{normalize_rewards}",
                "{normalize_observations}",
                otherwise="try a lower learning rate, and rewards and observations of a size of about 1",
            ),
        )


def returns_equal(run: RunRecords) -> Iterator[LearningFinding]:
    """Every episode of the run has the same return, so no action has an advantage over another.

    Source: SB3's tips ("start with shaped reward and a simplified version of your problem"); Schulman 2016 ("make sure
    that random exploration reaches a reward now and then").
    """
    lowest = [value for record in run.records if (value := _finite(record, "episode_return/min")) is not None]
    highest = [value for record in run.records if (value := _finite(record, "episode_return/max")) is not None]
    if run.episodes >= 2 * MIN_EPISODES and lowest and min(lowest) == max(highest, default=None):
        yield LearningFinding(
            "returns-equal",
            f"all {run.episodes:,} episodes have had the same return, {decimal(lowest[0])}: there is nothing to learn "
            "from yet",
            "check the environment's rewards; if they are rare, "
            + run.advice("a higher {entropy_cost}", "a higher {epsilon}", otherwise="explore more, or shape them"),
        )


def no_episode(run: RunRecords) -> Iterator[LearningFinding]:
    """No episode has ended, although each environment has made many steps: 100,000, or 2,000 and half of the run.

    Such a run has no returns, so that nothing shows whether the policy improves, and no `--stop-return` ends it.
    Dropped episodes are another problem. Source: Pardo et al. 2018, "Time Limits in Reinforcement Learning" (a limit in
    training diversifies experience, also for tasks without an end); gymnasium's longest limit in steps of a policy is
    27,000, that of Atari games.
    """
    if run.episodes or run.newest(EPISODES.tag) is None or run.newest(DROPPED_EPISODES.tag) or run.spaces is None:
        return
    n_actors = max((_finite(record, ACTORS_ALIVE.tag) or 0.0 for record in run.records), default=0.0)
    n_agents = sum(substep.n_agents for substep in run.spaces.values())
    steps = run.records[-1]["env_steps"]
    of_each = steps / (max(n_actors, 1.0) * float(run.settings.get("envs_per_actor") or 1) * n_agents)
    is_half = steps >= float(run.settings.get("total_steps", math.inf)) / 2
    if of_each >= _ENDLESS or (of_each >= _LONG and is_half):
        yield LearningFinding(
            "no-episode",
            f"no episode has ended in {steps:,} steps, about {of_each:,.0f} of each environment: there are no returns "
            "that show whether the policy improves",
            "give the environment a time limit: --env-kwargs '{\"max_episode_steps\": 1000}' for an id of gymnasium, "
            "gymnasium.wrappers.TimeLimit in your own factory",
        )


def entropy_gone(run: RunRecords) -> Iterator[LearningFinding]:
    """The entropy of discrete actions fell below 1 % of the maximum in the first quarter of the run, and stayed there.

    The rule applies while the return has not risen: a policy that no longer explores cannot find better actions.
    Source: Schulman 2016 ("premature drop in policy entropy: no learning; alleviate by entropy bonus or KL penalty");
    Andrychowicz et al. 2021, section 3.7 (regularisation); Mnih et al. 2016, section 4, for the entropy bonus.
    """
    quarter = float(run.settings.get("total_steps", math.inf)) / 4
    for tag, largest in _discrete_entropies(run):
        gone = run.series(tag, last=0.5)
        is_early = run.series(tag).env_steps
        early = is_early[run.series(tag).values < 0.01 * largest]
        if has_learnt(run) or not gone.mostly(gone.values < 0.01 * largest) or early[0] > quarter:
            continue
        yield LearningFinding(
            "entropy-gone",
            f"{tag} is {_number(gone.median)} nats, below 1 % of a uniform policy's {largest:.2f}, since "
            f"{int(early[0]):,} steps: the policy no longer explores, and returns do not rise",
            run.advice(
                "a higher {entropy_cost}",
                "a lower {learning_rate}",
                "a higher {target_entropy_ratio}",
                otherwise="try an entropy bonus, or a lower learning rate",
            ),
        )


def policy_random(run: RunRecords) -> Iterator[LearningFinding]:
    """The entropy of discrete actions has stayed above 99 % of the maximum: the policy is still random.

    Source: Ahmed et al. 2019, "Understanding the Impact of Entropy on Policy Optimization" (too large a bonus gives a
    uniform policy); Huang et al. 2022, detail 10 (coefficients of 0.01 and below).
    """
    bonus = run.setting("entropy_cost")
    if bonus is None:
        # SAC has a target for its entropy.
        return
    for tag, largest in _discrete_entropies(run):
        entropy = run.series(tag, last=0.5)
        if not has_learnt(run) and entropy.mostly(entropy.values > 0.99 * largest):
            yield LearningFinding(
                "policy-random",
                f"{tag} has stayed at {entropy.median / largest:.1%} of a uniform policy's for {entropy.n_updates} "
                "updates: the policy acts at random, and returns do not rise",
                run.advice(
                    "a lower {entropy_cost}" if bonus > 0 else "a higher {learning_rate}",
                    "{normalize_rewards}",
                    otherwise="try a smaller entropy bonus",
                ),
            )


def policy_stands_still(run: RunRecords) -> Iterator[LearningFinding]:
    """Updates do not change the policy: their KL divergence is about 0, and no step is clipped.

    The rule applies to the first three quarters of the run, since schedules end at 0. Source: Schulman 2016 (KL: "0.01
    is small, and you should see some"); Huang et al. 2022, detail 12.
    """
    if (
        has_learnt(run)
        or not run.records
        or run.records[-1]["env_steps"] > 0.75 * float(run.settings.get("total_steps", math.inf))
    ):
        return
    for tag in run.tags("approx_kl"):
        kl = run.series(tag, last=0.5)
        if kl.mostly(np.abs(kl.values) < 1e-6) and not any(_entropies_are_gone(run)):
            yield LearningFinding(
                "policy-stands-still",
                f"{tag} has stayed below 1e-6 for {kl.n_updates} updates, where 0.001 to 0.02 is usual: the policy "
                "does not change",
                run.advice("a higher {learning_rate}", "a higher {max_grad_norm}", otherwise="raise the learning rate"),
            )


def explained_variance_low(run: RunRecords) -> Iterator[LearningFinding]:
    """The critic's explained variance stays near 0 or below, and returns do not rise.

    Source: SB3's page on its logger ("ev=0 => might as well have predicted zero; ev<0 => worse than just predicting
    zero"), after OpenAI baselines; Schulman 2016, "baseline: explained variance".
    """
    for tag in run.tags("explained_variance"):
        explained = run.series(tag, last=0.5)
        is_long = explained.n_updates >= _MIN_CRITIC_UPDATES
        if is_long and not has_learnt(run) and explained.mostly(explained.values < 0.1):
            yield LearningFinding(
                "explained-variance",
                f"{tag} has stayed below 0.1 for {explained.n_updates} updates (median {explained.median:.2f}, 1 is "
                "best): the critic learns nothing useful",
                run.advice(
                    *_short_sight(run),
                    "{normalize_rewards}",
                    "{normalize_observations}",
                    "another {learning_rate}",
                    otherwise="scale rewards and observations to a size of about 1, or change the critic's learning "
                    "rate",
                ),
            )


def policy_jumps(run: RunRecords) -> Iterator[LearningFinding]:
    """The KL divergence of updates, or the share of clipped steps, is far too large.

    Source: Huang et al. 2022, detail 12 (the KL divergence usually stays below 0.02); OpenAI's Spinning Up (a target of
    0.01 to 0.05). SB3's example of a healthy log has 0.038, and a clip fraction of 0.24.
    """
    for name, bound, usual in (("approx_kl", 0.1, "0.001 to 0.02"), ("clip_fraction", 0.5, "0.05 to 0.3")):
        for tag in run.tags(name):
            jumps = run.series(tag, last=0.5)
            if jumps.mostly(jumps.values > bound):
                yield LearningFinding(
                    "policy-jumps",
                    f"{tag} has stayed above {bound} for {jumps.n_updates} updates (median {_number(jumps.median)}), "
                    f"where {usual} is usual: updates change the policy too much",
                    run.advice(
                        "a lower {learning_rate}",
                        "a lower {n_epochs}",
                        "{target_kl} 0.02",
                        otherwise="lower the learning rate, or the passes over a batch",
                    ),
                )
                return


def critic_clipped(run: RunRecords) -> Iterator[LearningFinding]:
    """The critic's gradient is always clipped to a twentieth or less, and returns do not rise.

    Adam cancels a constant factor of the gradient. But its direction then follows the largest errors alone, and such
    strong clipping means large targets. Source: Andrychowicz et al. 2021, section 3.3 and appendix B.7; Engstrom et al.
    2020, "Implementation Matters in Deep Policy Gradients", on clipping and on scaling rewards.
    """
    bound = run.setting("max_grad_norm")
    if bound is None or not math.isfinite(bound):
        return
    for tag in (*run.tags("critic_grad_norm"), *run.tags("grad_norm")):
        norm = run.series(tag, last=0.5)
        if not has_learnt(run) and norm.mostly(norm.values > 20.0 * bound):
            yield LearningFinding(
                "critic-clipped",
                f"{tag} has stayed above 20 times its bound of {bound:g} for {norm.n_updates} updates (median "
                f"{_number(norm.median)}): the targets are too large for the critic",
                run.advice(
                    "{normalize_rewards}",
                    "a smaller {reward_scale}",
                    "a higher {max_grad_norm}",
                    otherwise="scale rewards down, or raise the bound",
                ),
            )


def reward_scale_off(run: RunRecords) -> Iterator[LearningFinding]:
    """Scaled rewards are far from a size of about 1: above 100 a step, or no return above 0.1.

    Records have the environment's own rewards. So the rule clips an episode's mean reward like a single reward.

    Source: Henderson et al. 2018, section 4 ("reward scaling has a large effect"); Engstrom et al. 2020 (PPO's code
    divides by the standard deviation of returns); SB3's tips.
    """
    if run.episodes < MIN_EPISODES / 10:
        return
    factors = [value for tag in run.tags("reward_factor") if (value := run.newest(tag)) is not None]
    factor = factors[0] if factors else run.setting("reward_scale") or 1.0
    returns, lengths = run.series("episode_return/mean"), run.series("episode_length/mean")
    extremes = [run.series(f"episode_return/{end}").values for end in ("min", "max")]
    if not len(returns.values) or len(returns.values) != len(lengths.values):
        return
    clip = run.settings.get(f"{run.algorithm}.reward_clip", run.settings.get("replay.reward_clip", "none"))
    n_steps = np.maximum(lengths.values, 1.0)
    means = [clipped_reward(reward, clip) for reward in (returns.values / n_steps).tolist()]
    a_step = factor * float(np.median(np.abs(means)))
    if run.settings.get(f"{run.algorithm}.normalize_rewards"):
        # Rewards that are all equal have a standard deviation of 0: their factor is 10,000.
        a_step = min(a_step, MAX_NORMALIZED_REWARD * (run.setting("reward_scale") or 1.0))
    length = float(np.median(n_steps))
    clipped = [clipped_reward(end / length, clip) * length for end in np.concatenate(extremes).tolist()]
    largest = factor * max(map(abs, clipped), default=0.0)
    if a_step > 100.0:
        yield LearningFinding(
            "reward-scale",
            f"scaled rewards are about {_number(a_step)} a step, where about 1 is best: values are "
            "too large for the critic",
            run.advice(
                "{normalize_rewards}", "a smaller {reward_scale}", otherwise="scale the environment's rewards down"
            ),
        )
    elif 0.0 < largest < 0.1:
        yield LearningFinding(
            "reward-scale",
            f"no scaled return is above {_number(largest)}, where 1 to 10 is best: values are too small for the critic",
            run.advice(
                "{normalize_rewards}", "a larger {reward_scale}", otherwise="scale the environment's rewards up"
            ),
        )


def observation_scale_off(run: RunRecords) -> Iterator[LearningFinding]:
    """Numeric observations are far above a size of 1, or may be according to their space, and are not normalised.

    Spaces without bounds are judged by the observations of the first batch, until returns rise. Source: Andrychowicz et
    al. 2021, section 3.3 ("always use observation normalization"); SB3's tips ("normalize your observation space").
    """
    if run.spaces is None:
        return
    why = "where about 1 is best: large inputs saturate a network's units, which then learn nothing"
    is_normalized = bool(run.settings.get("normalize_observations"))
    # Normalisation leaves integers unchanged.
    to_scale = "scale observations in the environment"
    of_integers = f"{to_scale}, as a Box of floats: --normalize-observations leaves integers unchanged"
    of_floats = run.advice("{normalize_observations}", otherwise=to_scale)
    has_bounds = False
    for key, path, leaf in numeric_leaves(run.spaces):
        is_float = np.issubdtype(leaf.dtype, np.floating)
        if is_normalized and is_float:
            continue
        bounds = np.abs(np.stack([leaf.low, leaf.high]).astype(np.float64))
        largest = float(bounds[bounds < _UNBOUNDED].max(initial=0.0))
        if largest > _LARGE_OBSERVATION:
            has_bounds = True
            where = "/".join(part for part in (key if len(run.spaces) > 1 else "", path) if part)
            yield LearningFinding(
                "observation-scale",
                f"the observation{f' {where}' if where else ''} may be as large as {_number(largest)}, {why}",
                of_floats if is_float else of_integers,
            )
    size = run.newest(OBSERVATION_SIZE.tag)
    if is_normalized:
        return  # the size is of observations before normalisation
    if not has_bounds and size is not None and size > _LARGE_OBSERVATION and not has_learnt(run):
        yield LearningFinding(
            "observation-scale",
            f"observations of the first batch have a size of {_number(size)}, {why}",
            of_floats,
        )


def replay_ratio_off(run: RunRecords) -> Iterator[LearningFinding]:
    """Replay entries are drawn far less or more often than set; without a setting, less than once or far too often.

    Far too often means more than 20 updates for each entry. Source: Cassirer et al. 2021, "Reverb", on samples per
    insert; Fedus et al. 2020, "Revisiting Fundamentals of Experience Replay"; Chen et al. 2021 (REDQ makes 20 updates a
    step, and needs ten critics for it); Nikishin et al. 2022, "The Primacy Bias in Deep Reinforcement Learning".
    """
    target = run.settings.get("replay.samples_per_insert")
    batch = float(run.settings.get("batch_size") or 0)
    for tag in run.tags("samples_per_insert"):
        prefix = tag.removesuffix("samples_per_insert")
        drawn = run.series(prefix + REPLAY_SAMPLES.tag.rpartition("/")[2], last=0.5)
        inserted = run.series(prefix + REPLAY_INSERTS.tag.rpartition("/")[2], last=0.5)
        if not drawn.is_long or len(drawn.values) != len(inserted.values) or np.ptp(inserted.values) <= 0:
            continue
        ratio = float(np.ptp(drawn.values) / np.ptp(inserted.values))
        what = f"each entry of the replay buffer is drawn {_number(ratio)} times"
        if target and not 0.5 < ratio / target < 2.0:
            yield LearningFinding(
                "replay-ratio",
                f"{what}, where --replay.samples-per-insert is {target:g}: one side runs far ahead of the other",
                run.advice("a smaller {replay.error_buffer}", otherwise="lower --replay.samples-per-insert"),
            )
        elif not target and ratio < 1.0:
            yield LearningFinding(
                "replay-ratio",
                f"{what}: most experience is never learnt from, because actors are faster than the learner",
                f"try --replay.samples-per-insert {max(batch / 4, 1):g}, so that actors wait, or fewer actors",
            )
        elif not target and batch and ratio > 20.0 * batch:
            yield LearningFinding(
                "replay-ratio",
                f"{what}, which is {ratio / batch:,.0f} updates for each: values grow too large, and early experience "
                "weighs most",
                f"try --replay.samples-per-insert {batch:g}, so that the learner waits, or more actors",
            )


def steps_dear(run: RunRecords) -> Iterator[LearningFinding]:
    """Steps are so slow that an algorithm with many updates a step would learn faster.

    Below 100 steps a second over all actors, SAC and DQN keep up on one core. The rule applies at the start of a run,
    after two records, when another run costs little. Source: SB3's tips, "Which algorithm should I use?" (SAC, TD3 and
    DQN for few samples, PPO and A2C for short wall-clock time); Haarnoja et al. 2018, figure 1.
    """
    if run.algorithm not in _LEARN_ONCE or run.spaces is None or len(run.spaces) > 1 or has_learnt(run):
        return
    speed, waits = run.series(ENV_STEPS_PER_SECOND.tag, last=0.5), run.series(WAITING_FRACTION.tag, last=0.5)
    if min(len(speed.values), len(waits.values)) < _MIN_SPEEDS:
        return
    if min((speed.values < _DEAR).mean(), (waits.values > _MOSTLY).mean()) < _MOSTLY:
        return
    (substep,) = run.spaces.values()
    has_memory = run.settings.get("recurrence", "none") != "none"
    better = ""
    if isinstance(substep.action, gym_spaces.Discrete):
        better = "r2d2" if has_memory else "dqn"
    elif isinstance(substep.action, gym_spaces.Box) and substep.action.is_bounded() and not has_memory:
        better = "sac"
    if better:
        yield LearningFinding(
            "steps-dear",
            f"the environments make {_number(speed.median)} steps a second in all, and the learner waits for them: "
            f"{run.algorithm} learns from each step only a few times",
            f"begin another run with --algorithm {better}, which learns from each step many times, or with more actors",
        )


def evaluator_skips(evaluations: int, skipped: int) -> Iterator[LearningFinding]:
    """Most due policies are not evaluated, so that the best policy is chosen from few policies.

    Source: this project. An evaluator takes the newest due policy and skips earlier policies.
    """
    if skipped and not evaluations:
        none = "the only due policy was not" if skipped == 1 else f"none of {skipped:,} due policies was"
        yield LearningFinding(
            "evaluator-skips",
            f"{none} evaluated: no evaluator is connected, or it is too slow",
            "start an evaluator: rollcast actor --role evaluate --learner-address HOST:PORT; or raise "
            "--eval-interval-s or --eval-interval-steps",
        )
    elif skipped > evaluations:
        yield LearningFinding(
            "evaluator-skips",
            f"{counted(skipped, 'due policy was', 'due policies were')} not evaluated, "
            f"{counted(evaluations, 'was', 'were')}: the evaluator is too slow for the interval",
            "raise --eval-interval-s or --eval-interval-steps, lower --eval-episodes, or start another evaluator",
        )


def goal_missed(run: RunRecords) -> Iterator[LearningFinding]:
    """A finished run has not reached the mean return of its goal.

    Source: this project. Such training ended by its steps, or because evaluations got no better.
    """
    stop_return = run.settings.get("stop_return")
    goal = goal_of(None if stop_return is None else float(stop_return), str(run.settings.get("env_id", "")))
    if goal is None:
        return
    stop_on = run.settings.get("stop_on")
    tags = {"train": MEAN_RETURN.tag, "eval": EVAL_MEAN_RETURN.tag}
    returns = [run.newest(tag) for name, tag in tags.items() if stop_on in (None, name)]
    known = [mean_return for mean_return in returns if mean_return is not None]
    if known and max(known) >= goal:
        return
    reached = f"its mean return is {_below(max(known), goal)}" if known else "no episode has ended"
    yield LearningFinding(
        "goal-missed",
        f"training has finished without reaching its goal: {reached}, and the goal is {goal:g} (--stop-return)",
        "resume it with more --total-steps, or begin another with a recipe of `rollcast recipes`, or with another "
        "--algorithm",
    )


# The worst first.
RULES: Final[tuple[Callable[[RunRecords], Iterator[LearningFinding]], ...]] = (
    returns_fell,
    returns_equal,
    no_episode,
    entropy_gone,
    policy_random,
    policy_stands_still,
    policy_jumps,
    explained_variance_low,
    critic_clipped,
    reward_scale_off,
    observation_scale_off,
    replay_ratio_off,
    steps_dear,
)


def find(run: RunRecords) -> list[LearningFinding]:
    """Returns the findings of the rules, worst first, at most 16; empty with too few records."""
    with np.errstate(all="ignore"):  # values of a run that diverges may be of any size
        return [finding for rule in RULES for finding in rule(run)][:_MAX_FINDINGS]


def _short_sight(run: RunRecords) -> list[str]:
    """Returns advice for a discount that sees less than ten steps ahead."""
    discount = run.setting("discount")
    return [] if discount is None or discount >= 0.9 else ["a higher {discount}"]


def _entropies_are_gone(run: RunRecords) -> Iterator[bool]:
    for tag, largest in _discrete_entropies(run):
        entropy = run.series(tag, last=0.5)
        yield entropy.mostly(entropy.values < 0.01 * largest)


def _discrete_entropies(run: RunRecords) -> Iterator[tuple[str, float]]:
    """Yields the tags of entropies of discrete actions, with the positive entropy of the uniform policy in nats."""
    for tag in run.tags("entropy") if run.spaces is not None else ():
        assert run.spaces is not None, "asked for above"
        parts = tag.split("/")
        key = parts[1] if len(parts) > 2 else next(iter(run.spaces))
        largest = _uniform_entropy(run.spaces[key].action) if key in run.spaces else 0.0
        if largest > 0.0:
            yield tag, largest


def _uniform_entropy(space: gymnasium.Space[Any]) -> float:
    """Returns the entropy of a uniform policy in a space of discrete actions, in nats; 0 for other spaces."""
    if isinstance(space, gym_spaces.Discrete):
        return math.log(space.n)
    if isinstance(space, gym_spaces.MultiDiscrete):
        return float(np.log(space.nvec).sum())
    return math.prod(space.shape) * math.log(2.0) if isinstance(space, gym_spaces.MultiBinary) else 0.0


def _finite(record: Record, tag: str) -> float | None:
    value = record.get(tag)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _below(value: float, bound: float) -> str:
    """Returns a number below a bound, with more digits if its usual text is that of the bound."""
    return decimal(value) if decimal(value) != decimal(bound) else f"{value:g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
