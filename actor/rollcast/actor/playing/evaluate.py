"""Plays episodes with a policy and computes its mean return with a confidence interval."""

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any, Final, NamedTuple

import gymnasium
from numpy.typing import NDArray

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import (
    EnvFactory,
    EnvironmentFactory,
    drops_episodes,
    make_single_env,
    whole_episodes,
)
from rollcast.actor.environments.one_of_vector import OneOfVector
from rollcast.actor.environments.recovering import DroppedEpisodesLog
from rollcast.actor.environments.structured import ActorId, SingleAgentEnv, StructuredEnv
from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.frame_stacks import FrameStacks
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.seeds import derive_seeds
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.services.errors import ConfigurationError
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan
from rollcast.services.policies.policies import PolicyState
from rollcast.services.process.installation import require_extra
from rollcast.services.spaces.spaces import Observation

logger = logging.getLogger(__name__)

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom, where the series below is off by over 1e-3.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

# Of all evaluations of this process.
_DROPPED_LOG: Final = DroppedEpisodesLog()

# The numbers of steps after which a warning says that the episode may never end.
_LONG: Final = frozenset({100_000, 1_000_000, 10_000_000})

# The largest number of attempts for each counted episode, if the environment may raise.
_MAX_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of some episodes.

    Attributes:
        returns: The sum of rewards of each episode, in the order of the seeds. With several agents: the mean over
            agents.
        lengths: The number of steps of each episode. In a structured environment: the number of turns.
        mean: The mean of the returns.
        std: The sample standard deviation of the returns (n - 1); 0 for one episode.
        confidence_interval: The 95 % confidence interval of the mean by Student's t, (low, high); infinite for one
            episode.
        agent_returns: The mean return of each agent, by `StructuredEnv.agent_name`.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    std: float
    confidence_interval: tuple[float, float]
    agent_returns: Mapping[str, float] = field(default_factory=dict)


class _Player(NamedTuple):
    """The policy or the random player that acts for agents."""

    policy: Policy
    deterministic: bool


class _Recurrence(NamedTuple):
    """The state and the frames that a policy carries through an agent's episode."""

    state: RecurrentState | None
    stacks: FrameStacks | None


def evaluate_as_planned(
    env_factory: EnvFactory,
    policy: Policy,
    plan: EvaluationPlan,
    *,
    video_dir: Path | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> dict[EvaluationActions, Evaluation]:
    """Plays the episodes of a plan, with each of the plan's kinds of actions.

    Args:
        env_factory: See `evaluate_policy`.
        policy: See `evaluate_policy`.
        plan: The episodes.
        video_dir: See `evaluate_policy`. With two kinds of actions, each kind has a subfolder.
        on_step: See `evaluate_policy`.

    Returns:
        The results for each kind of actions, in the order of `EvaluationActions.kinds`.

    Raises:
        ConfigurationError: See `evaluate_policy`.
        EnvironmentFailedError: See `evaluate_policy`.
    """
    kinds = plan.actions.kinds
    return {
        kind: evaluate_policy(
            env_factory,
            policy,
            n_episodes=plan.n_episodes,
            seed=plan.seed,
            deterministic=kind is EvaluationActions.LIKELIEST,
            video_dir=video_dir / kind.option if video_dir is not None and len(kinds) > 1 else video_dir,
            on_step=on_step,
        )
        for kind in kinds
    }


def evaluate_against(
    env_factory: EnvFactory,
    policy: Policy,
    opponents: Mapping[int, PolicyState],
    plan: EvaluationPlan,
    make_opponent: Callable[[], Policy],
    *,
    on_step: Callable[[], None] = lambda: None,
) -> dict[int, Evaluation]:
    """Plays games against random actions, and against earlier versions of the policy.

    In game i, the policy plays agent i, modulo the number of agents. The opponent plays all other agents. An opponent
    samples its actions, or takes the action of the highest value if it has learnt values. A return is a margin: the
    return of the policy's agent minus the mean of the other agents' returns.

    Args:
        env_factory: See `evaluate_policy`. The environment has several agents.
        policy: See `evaluate_policy`.
        opponents: The arrays of each version to play against.
        plan: The number of games against each opponent, their seed, and the policy's actions.
        make_opponent: Makes a policy of the same architecture, to load a version into.
        on_step: See `evaluate_policy`.

    Returns:
        The games against each opponent, by version. Version 0, the first entry, is random play.

    Raises:
        ConfigurationError: See `evaluate_policy`; also if there is only one agent.
        EnvironmentFailedError: See `evaluate_policy`.
    """
    agents = [ActorId(key, i) for key, substep in policy.spaces.items() for i in range(substep.n_agents)]
    if len(agents) < 2:
        raise ConfigurationError(
            "an evaluation against opponents has 1 agent; expected an environment with several agents; omit "
            "--eval-opponents"
        )
    own = _Player(policy, plan.actions is EvaluationActions.LIKELIEST)
    played = {}
    for version, state in ({0: None} | dict(opponents)).items():
        if state is None:
            opponent: Policy = RandomPolicy(policy.spaces, seed=plan.seed)
        else:
            opponent = make_opponent()
            opponent.load(version, state)
        # With learnt values, the only drawn actions are those of exploration.
        theirs = _Player(opponent, state is not None and not opponent.is_stochastic)
        seats = [{agent: own if agent == mine else theirs for agent in agents} for mine in agents]
        games, _ = _play(
            env_factory,
            seats,
            n_episodes=plan.n_episodes,
            seed=plan.seed,
            on_step=on_step,
        )
        margins = []
        for i, (returns, _) in enumerate(games):
            mine = agents[i % len(agents)]
            margins.append(returns.get(mine, 0.0) - fmean(returns.get(agent, 0.0) for agent in agents if agent != mine))
        played[version] = summarize(tuple(margins), tuple(length for _, length in games))
    return played


def better_actions(played: Mapping[EvaluationActions, Evaluation]) -> EvaluationActions:
    """Returns the kind of actions with the higher mean return; the first kind if both means are equal."""
    return max(played, key=lambda kind: played[kind].mean)


def evaluate_policy(
    env_factory: EnvFactory,
    policy: Policy,
    *,
    n_episodes: int,
    seed: int,
    deterministic: bool,
    video_dir: Path | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Plays episodes, one after another in one environment.

    The i-th seed derived from `seed` resets episode i and samples its actions. So episode i does not depend on earlier
    episodes, on the vectorization of training, or on the machine.

    With `on_step_failure="drop_episode"`, an episode with another seed replaces each episode in which the environment
    raises an exception. After ten times `n_episodes` attempts, the finished episodes count.

    Args:
        env_factory: Makes the environment, as for `make_vector_env`, except that Atari is played in whole games. For a
            video, an `EnvironmentFactory`.
        policy: A policy with loaded weights. This function sets its seed.
        n_episodes: Number of episodes, at least 1.
        seed: Seed of all episodes, at least 0.
        deterministic: True: take the greedy action instead of a sample.
        video_dir: Folder for a video of every episode; None: no videos.
        on_step: Called before every reset and step. An exception of `on_step` ends the evaluation.

    Returns:
        Returns, lengths and statistics of the episodes. There are fewer episodes if the environment raised too often.

    Raises:
        ConfigurationError: If a number is out of range, the policy has no distribution to draw actions from, or a video
            cannot be recorded.
        EnvironmentFailedError: If the environment raised, or returned an invalid value. If episodes are dropped: only
            if the environment did so in every episode, or in a reset.
    """
    if not (deterministic or policy.is_stochastic):
        raise ConfigurationError(
            "the policy takes the action of the highest value, and has no distribution to draw actions from; "
            "expected an evaluation with greedy actions; choose --eval-actions likeliest"
        )
    player = _Player(policy, deterministic)
    played, name_of = _play(
        env_factory, (player,), n_episodes=n_episodes, seed=seed, video_dir=video_dir, on_step=on_step
    )
    agents = sorted({actor for episode, _ in played for actor in episode})
    evaluation = summarize(
        tuple(fmean(episode.values()) for episode, _ in played), tuple(length for _, length in played)
    )
    return replace(
        evaluation,
        agent_returns={name_of(actor): fmean(episode.get(actor, 0.0) for episode, _ in played) for actor in agents},
    )


def _play(
    env_factory: EnvFactory,
    players: Sequence[_Player | Mapping[ActorId, _Player]],
    *,
    n_episodes: int,
    seed: int,
    video_dir: Path | None = None,
    on_step: Callable[[], None],
) -> tuple[list[tuple[dict[ActorId, float], int]], Callable[[ActorId], str]]:
    """Plays episodes with the players in rotation.

    Returns:
        The agents' returns and the turns of each episode, and a function that names an agent.
    """
    if n_episodes < 1:
        raise ConfigurationError(f"n_episodes is {n_episodes}; expected at least 1. Raise it.")
    if seed < 0:
        raise ConfigurationError(f"seed is {seed}; expected at least 0. Choose another.")
    may_raise = drops_episodes(env_factory)
    env_factory = whole_episodes(env_factory)
    env = make_single_env(env_factory) if video_dir is None else _recording_env(env_factory, video_dir)
    structured = env if isinstance(env, StructuredEnv) else SingleAgentEnv(env)
    # a vector of one, because it checks what the environment returns, and its errors name environment and seed
    vector_env = StructuredVectorEnv([lambda: structured])
    left = derive_seeds([seed], _MAX_TRIES * n_episodes if may_raise else n_episodes)
    played: list[tuple[dict[ActorId, float], int]] = []
    try:
        # Always the whole task: returns of earlier and later policies can be compared.
        vector_env.set_progress(1.0)
        while left and len(played) < n_episodes:
            try:
                played.append(
                    _play_episode(vector_env, players[len(played) % len(players)], left.pop(0), on_step=on_step)
                )
            except EnvironmentFailedError as error:
                if not may_raise or error.report.doing != "step" or not (left or played):
                    raise
                _DROPPED_LOG.note(error.report, env_index=0, env_seed=error.env_seed)
    finally:
        vector_env.close()
    if len(played) < n_episodes:
        logger.warning(
            "%d of %d episodes ended, because the environment raised in %d others; the mean is over the ended episodes",
            len(played),
            n_episodes,
            _MAX_TRIES * n_episodes - len(played),
        )
    return played, structured.agent_name


def summarize(returns: tuple[float, ...], lengths: tuple[int, ...]) -> Evaluation:
    """Computes the statistics of played episodes.

    Args:
        returns: Sum of rewards of each episode, at least one.
        lengths: Number of steps of each episode.
    """
    n, mean = len(returns), fmean(returns)
    std = stdev(returns) if n > 1 else 0.0
    margin = t_quantile_975(n - 1) * std / math.sqrt(n) if n > 1 else math.inf
    return Evaluation(
        returns=returns, lengths=lengths, mean=mean, std=std, confidence_interval=(mean - margin, mean + margin)
    )


def t_quantile_975(degrees_of_freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t distribution, exact to three decimals.

    A table has the quantiles for up to 30 degrees of freedom. For more, this function uses the first terms of the
    Cornish-Fisher expansion around the normal quantile z: t = z + (z^3 + z) / 4n + (5 z^5 + 16 z^3 + 3 z) / 96 n^2.
    This avoids a dependency on scipy.

    Args:
        degrees_of_freedom: n, at least 1.
    """
    if degrees_of_freedom <= len(_T_975):
        return _T_975[degrees_of_freedom - 1]
    z, n = NormalDist().inv_cdf(0.975), degrees_of_freedom
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n * n)


def _play_episode(
    vector_env: StructuredVectorEnv,
    players: _Player | Mapping[ActorId, _Player],
    seed: int,
    *,
    on_step: Callable[[], None],
) -> tuple[dict[ActorId, float], int]:
    """Plays an episode; returns each agent's return, and the number of turns."""
    for player in (players,) if isinstance(players, _Player) else players.values():
        player.policy.seed(seed)
    executed = {key: ExecutedActions(substep.action) for key, substep in vector_env.spaces.items()}
    on_step()
    turn = vector_env.reset(0, seed=seed)
    returns: dict[ActorId, float] = dict.fromkeys(turn.observations, 0.0)
    # Each agent has its own.
    recurrences: dict[ActorId, _Recurrence] = {}
    n_turns = 0
    while turn.observations:
        actions = {
            actor: executed[actor.substep_key](
                _act(players if isinstance(players, _Player) else players[actor], actor, observation, recurrences)
            )
            for actor, observation in turn.observations.items()
        }
        on_step()
        turn = vector_env.step(0, actions)
        for actor, reward in turn.rewards.items():
            returns[actor] = returns.get(actor, 0.0) + float(reward)
        n_turns += 1
        if n_turns in _LONG:
            logger.warning(
                "the episode with seed %d has had %d steps, and continues: without a time limit, greedy actions may "
                "never end an episode; let the environment return truncated=True after a number of steps, or, if "
                "gymnasium has registered it, give --env-kwargs '{\"max_episode_steps\": 1000}'",
                seed,
                n_turns,
            )
    return returns, n_turns


def _act(
    player: _Player,
    actor: ActorId,
    leaves: Observation,
    recurrences: dict[ActorId, _Recurrence],
) -> NDArray[Any]:
    policy, deterministic = player
    if actor not in recurrences:
        recurrences[actor] = _Recurrence(policy.initial_state(1), policy.frame_stacks(1))
    state, stacks = recurrences[actor]
    observation: Observation = {path: leaf[None] for path, leaf in leaves.items()}
    action, _ = policy.act(
        observation if stacks is None else stacks.push(observation),
        deterministic=deterministic,
        substep_key=actor.substep_key,
        state=state,
    )
    chosen: NDArray[Any] = action[0]
    return chosen


def _recording_env(env_factory: EnvFactory, video_dir: Path) -> gymnasium.Env[Any, Any]:
    if not isinstance(env_factory, EnvironmentFactory):
        raise ConfigurationError(
            f"A video needs an EnvironmentFactory; got {type(env_factory).__name__}. Pass such a factory."
        )
    # the renderer, too: an environment that lacks it would fail in its first reset
    require_extra("video", "a video")
    played = make_single_env(env_factory)
    played.close()
    if isinstance(played, OneOfVector):
        raise ConfigurationError(
            f"A video of {env_factory.env_id!r} cannot be recorded: the policy plays in the registered vector "
            "environment, whose spaces differ from those of the single environment. Evaluate without a video, or train "
            "with --vectorization sync."
        )
    from gymnasium.wrappers import RecordVideo  # an evaluator needs none of the wrappers

    cannot = f"A video of {env_factory.env_id!r} cannot be recorded"
    expected = (
        "expected an environment that takes render_mode='rgb_array', keeps it as its render_mode, and whose render() "
        "returns an image; add this to the environment, or evaluate without --video"
    )
    try:
        env = replace(env_factory, env_kwargs={**env_factory.env_kwargs, "render_mode": "rgb_array"})()
    except ConfigurationError as error:
        raise ConfigurationError(f"{cannot}: {error.__cause__ or error}; {expected}") from error
    if isinstance(env, StructuredEnv):
        raise ConfigurationError(
            f"{cannot}: the environment is structured; expected a gymnasium.Env. Evaluate the policy without a video."
        )
    if env.render_mode != "rgb_array":
        env.close()
        raise ConfigurationError(f"{cannot}: its render_mode is {env.render_mode!r}; {expected}")
    with warnings.catch_warnings():
        # gymnasium warns that it overwrites videos, which is intended
        warnings.filterwarnings("ignore", message=".*Overwriting existing videos")
        try:
            return RecordVideo(env, str(video_dir), episode_trigger=lambda episode: True, disable_logger=True)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {str(video_dir)!r} for videos cannot be made: {error.strerror}; expected a place that can "
                "be written to; choose another --video"
            ) from error
