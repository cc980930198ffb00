from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.health.rules import (
    RULES,
    RunRecords,
    evaluator_skips,
    find,
    first_returns,
    goal_missed,
    has_learnt,
)
from rollcast.services.spaces.spaces import SubstepSpaces

SETTINGS = {
    "algorithm": "ppo",
    "total_steps": 1_000_000,
    "normalize_observations": False,
    "ppo.learning_rate": 3e-4,
    "ppo.max_grad_norm": 0.5,
    "ppo.entropy_cost": 0.01,
    "ppo.normalize_rewards": False,
    "ppo.reward_scale": 1.0,
    "ppo.n_epochs": 10,
    "ppo.target_kl": None,
    "ppo.discount": 0.99,
}
REPLAY = {**SETTINGS, "algorithm": "dqn", "batch_size": 64, "replay.samples_per_insert": None, "replay.error_buffer": 9}
SPACES = {"0": SubstepSpaces(observation=spaces.Box(-10.0, 10.0, (4,), np.float32), action=spaces.Discrete(4))}
UNIFORM = float(np.log(4))


def records(n: int = 40, **tags: float | Callable[[int], Any] | None) -> list[dict[str, Any]]:
    """A run that stands still: 2,000 steps, 10 episodes and 5 updates a record; underscores stand for slashes."""
    values = {
        "env_steps": lambda i: 2000 * (i + 1),
        "train/updates": lambda i: 5 * (i + 1),
        "train/episodes": lambda i: 10 * (i + 1),
        "train/mean_return": 20.0,
        "episode_return/mean": 20.0,
        "episode_return/std": 5.0,
        "episode_return/min": 10.0,
        "episode_return/max": 30.0,
        "episode_length/mean": 20.0,
        "episode_count/epoch": 10,
        **{tag.replace("__", "/"): value for tag, value in tags.items()},
    }
    return [{tag: value(i) if callable(value) else value for tag, value in values.items()} for i in range(n)]


def run_of(
    rows: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS, spaces_: dict[str, SubstepSpaces] | None = SPACES
) -> RunRecords:
    return RunRecords(records=rows, settings=settings, spaces=spaces_)


def rules_of(run: RunRecords) -> list[str]:
    return [finding.rule for finding in find(run)]


HEALTHY: dict[str, Any] = {
    "ppo__entropy": lambda i: 1.3 - 0.02 * i,
    "ppo__explained_variance": 0.6,
    "ppo__approx_kl": 0.01,
    "ppo__clip_fraction": 0.1,
    "ppo__critic_grad_norm": 2.0,
    "ppo__reward_factor": 1.0,
}
SAMPLED: dict[str, Any] = {"replay__samples": lambda i: 1000 * i, "replay__inserts": lambda i: 100 * i}


@pytest.mark.parametrize(
    ("rule", "unhealthy", "option"),
    [
        ("returns-fell", {"train__mean_return": 15.0}, "a lower --ppo.learning-rate"),
        (
            "returns-equal",
            {"episode_return__min": 0.0, "episode_return__max": 0.0, "episode_return__mean": 0.0},
            "a higher --ppo.entropy-cost",
        ),
        ("entropy-gone", {"ppo__entropy": 0.001}, "a higher --ppo.entropy-cost"),
        ("policy-random", {"ppo__entropy": UNIFORM}, "a lower --ppo.entropy-cost"),
        ("policy-stands-still", {"ppo__approx_kl": 1e-9}, "a higher --ppo.learning-rate"),
        ("policy-jumps", {"ppo__approx_kl": 0.5}, "a lower --ppo.n-epochs"),
        ("policy-jumps", {"ppo__clip_fraction": 0.7}, "--ppo.target-kl 0.02"),
        ("explained-variance", {"ppo__explained_variance": -0.01}, "--ppo.normalize-rewards"),
        ("critic-clipped", {"ppo__critic_grad_norm": 12.0}, "a smaller --ppo.reward-scale"),
        ("reward-scale", {"ppo__reward_factor": 1000.0}, "a smaller --ppo.reward-scale"),
        ("reward-scale", {"ppo__reward_factor": 1e-4}, "a larger --ppo.reward-scale"),
    ],
)
def test_each_rule_finds_its_own_in_long_runs_only(rule: str, unhealthy: dict[str, Any], option: str):
    (finding,) = find(run_of(records(**HEALTHY | unhealthy)))
    assert finding.rule == rule
    assert option in finding.advice
    # one that has just begun
    assert rules_of(run_of(records(8, **HEALTHY | unhealthy, train__episodes=9, episode_count__epoch=1))) == []


@pytest.mark.parametrize(
    ("settings", "factor", "found"),
    [
        # equal rewards of rollouts of one step have a standard deviation of 0
        ({"ppo.normalize_rewards": True}, 1e4, False),
        ({"ppo.normalize_rewards": True, "ppo.reward_scale": 20.0}, 20e4, True),
        ({"ppo.reward_clip": "unit"}, 99.0, False),
        ({"ppo.reward_clip": "unit"}, 101.0, True),
        ({"ppo.reward_clip": "soft_asymmetric"}, 19.0, False),
        ({"algorithm": "dqn", "replay.reward_clip": "unit"}, 99.0, False),
        ({"algorithm": "dqn", "replay.reward_clip": "none"}, 99.0, True),
    ],
)
def test_rewards_are_judged_as_they_are_clipped(settings: dict[str, Any], factor: float, found: bool):
    rows = records(ppo__reward_factor=factor, episode_return__mean=20_000.0)
    assert ("reward-scale" in rules_of(run_of(rows, {**SETTINGS, **settings}))) is found


@pytest.mark.parametrize(
    ("clip", "largest", "found"),
    [
        ("none", 0.05, True),
        ("soft_asymmetric", 0.05, False),
        ("soft_asymmetric", -0.2, True),
        ("none", -0.2, False),
        ("unit", -0.05, True),
    ],
)
def test_small_returns_are_judged_as_they_are_clipped(clip: str, largest: float, found: bool):
    ends: dict[str, Any] = {f"episode_return__{end}": largest for end in ("min", "mean", "max")}
    rows = records(ppo__reward_factor=1.0, **ends)
    assert ("reward-scale" in rules_of(run_of(rows, {**SETTINGS, "ppo.reward_clip": clip}))) is found


SLOW: dict[str, Any] = {"speed__env_steps_per_second": 20.0, "speed__waiting_fraction": 0.97}


@pytest.mark.parametrize(
    ("action", "more", "algorithm"),
    [
        (spaces.Discrete(4), {}, "dqn"),
        (spaces.Discrete(4), {"recurrence": "lstm"}, "r2d2"),
        (spaces.Box(-1, 1, (2,), np.float32), {}, "sac"),
        (spaces.Box(-1, 1, (2,), np.float32), {"recurrence": "lstm"}, None),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), {}, None),
        (spaces.MultiDiscrete([3, 3]), {}, None),
    ],
)
def test_where_steps_are_dear_another_algorithm_is_named(
    action: spaces.Space, more: dict[str, Any], algorithm: str | None
):
    observed = SubstepSpaces(observation=spaces.Box(-1, 1, (2,), np.float32), action=action)
    entropy = {"ppo__entropy": None}
    slow = RunRecords(records=records(**HEALTHY | entropy | SLOW), settings=SETTINGS | more, spaces={"0": observed})
    found = [finding for finding in find(slow) if finding.rule == "steps-dear"]
    assert [f"--algorithm {algorithm}," in finding.advice for finding in found] == [True] * (algorithm is not None)
    for healthy in ({"speed__env_steps_per_second": 5000.0}, {"speed__waiting_fraction": 0.1}):
        records_of = records(**HEALTHY | entropy | SLOW | healthy)
        assert "steps-dear" not in rules_of(RunRecords(records=records_of, settings=SETTINGS, spaces={"0": observed}))


def test_dear_steps_are_told_at_the_start_of_a_run():
    spaces_ = {"0": SubstepSpaces(observation=spaces.Box(-1, 1, (2,), np.float32), action=spaces.Box(-1, 1, (2,)))}
    begun = {"train__episodes": 9, "episode_count__epoch": 1, "train__updates": lambda i: i + 1}
    assert rules_of(run_of(records(2, **begun | SLOW), spaces_=spaces_)) == ["steps-dear"]
    assert rules_of(run_of(records(1, **begun | SLOW), spaces_=spaces_)) == []
    # actors that were slow to start
    starting = {"speed__env_steps_per_second": lambda i: 5000.0 * i}
    assert rules_of(run_of(records(2, **begun | SLOW | starting), spaces_=spaces_)) == []


ENDLESS: dict[str, Any] = {
    **dict.fromkeys(("train__mean_return", *(f"episode_return__{name}" for name in ("mean", "std", "min", "max")))),
    **{"train__episodes": 0, "episode_count__epoch": 0, "actors__alive": 4, "actors__dropped_episodes": 0},
    "ppo__entropy": 1.0,
}
TWO_AGENTS = {"0": SubstepSpaces(observation=SPACES["0"].observation, action=SPACES["0"].action, n_agents=2)}


@pytest.mark.parametrize(
    ("n", "total_steps", "more", "found"),
    [
        # 2,000 steps a record, of 4 actors with 5 environments of 2 agents
        (1999, 10**9, {}, False),
        (2000, 10**9, {}, True),
        (2000, 10**9, {"train__episodes": lambda i: int(i == 1999)}, False),
        (2000, 10**9, {"actors__dropped_episodes": 3}, False),
        (2000, 10**9, {"actors__alive": lambda i: 5 if i == 9 else 4}, False),
        (40, 160_001, {}, False),
        (40, 160_000, {}, True),
        (39, 10_000, {}, False),
        (1, 10_000, {}, False),
    ],
)
def test_a_run_without_the_end_of_an_episode_needs_a_time_limit(
    n: int, total_steps: int, more: dict[str, Any], found: bool
):
    settings = SETTINGS | {"total_steps": total_steps, "envs_per_actor": 5}
    run = run_of(records(n, **HEALTHY | ENDLESS | more), settings, TWO_AGENTS)
    assert rules_of(run) == ["no-episode"] * found
    for finding in find(run):
        assert f"no episode has ended in {2000 * n:,} steps, about {50 * n:,} of each environment" in finding.what
        assert "max_episode_steps" in finding.advice


def test_an_empty_run_and_one_of_another_algorithm_have_no_findings():
    assert rules_of(run_of([])) == []
    assert find(RunRecords(records=records(), settings={})) == []


def test_the_sentence_has_value_expectation_and_option():
    (finding,) = find(run_of(records(**HEALTHY | {"ppo__explained_variance": 0.02})))
    assert finding.sentence == (
        "ppo/explained_variance has stayed below 0.1 for 100 updates (median 0.02, 1 is best): the critic learns "
        "nothing useful; try --ppo.normalize-rewards, --normalize-observations or another --ppo.learning-rate"
    )


def test_options_that_an_algorithm_lacks_or_that_are_on_are_not_advised():
    low = records(**HEALTHY | {"ppo__explained_variance": 0.02})
    given = {**SETTINGS, "ppo.normalize_rewards": True, "normalize_observations": True}
    (finding,) = find(run_of(low, given))
    assert finding.advice == "try another --ppo.learning-rate"
    (finding,) = find(run_of(low, {"algorithm": "mine:make"}))
    assert finding.advice.startswith("scale rewards and observations")
    (finding,) = find(run_of(low, {**SETTINGS, "ppo.discount": 0.0}))
    assert finding.advice.startswith("try a higher --ppo.discount")


RISING: dict[str, Any] = {"train__mean_return": lambda i: 20.0 + 10.0 * i}


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param({}, id="all is well"),
        *(
            pytest.param(RISING | tags, id="it learns")
            for tags in (
                {"ppo__entropy": 0.001},
                {"ppo__explained_variance": -0.01},
                {"ppo__critic_grad_norm": 12.0},
                {"ppo__entropy": UNIFORM},
                {"ppo__approx_kl": 0.0},
            )
        ),
        pytest.param({"ppo__explained_variance": lambda i: 0.0 if i < 25 else 0.5}, id="it is past"),
        pytest.param({"ppo__explained_variance": lambda i: 0.0 if i % 2 else 0.5}, id="it comes and goes"),
        pytest.param({"ppo__approx_kl": lambda i: 0.5 if i % 10 == 0 else 0.01}, id="it is seldom"),
        pytest.param(
            {"train__mean_return": lambda i: 20.0 if i == 39 else 5.0}, id="returns were lost and found again"
        ),
        pytest.param({"ppo__approx_kl_max": 5.0, "ppo__critic_grad_norm_max": 50.0}, id="the largest are no means"),
        pytest.param(dict.fromkeys(HEALTHY) | {"train__mean_return": None}, id="null: they are not finite"),
    ],
)
def test_what_a_healthy_run_may_show(tags: dict[str, Any]):
    assert rules_of(run_of(records(**HEALTHY | tags))) == []


def test_entropy_that_falls_at_the_end_of_the_steps_is_what_was_wanted():
    gone = records(**HEALTHY | {"ppo__entropy": 0.001})
    assert rules_of(run_of(gone, {**SETTINGS, "total_steps": 80_000})) == ["entropy-gone"]
    late = records(**HEALTHY | {"ppo__entropy": lambda i: 1.0 if i < 12 else 0.001})
    assert rules_of(run_of(late, {**SETTINGS, "total_steps": 80_000})) == []
    still = records(**HEALTHY | {"ppo__approx_kl": 0.0})
    assert rules_of(run_of(still, {**SETTINGS, "total_steps": 80_000})) == []


def test_only_discrete_actions_have_an_entropy_to_lose():
    gone = records(**HEALTHY | {"ppo__entropy": 0.001})

    def found(action: spaces.Space[Any]) -> list[str]:
        of = {"0": SubstepSpaces(observation=SPACES["0"].observation, action=action)}
        return rules_of(run_of(gone, spaces_=of))

    assert found(spaces.Box(-1.0, 1.0, (2,), np.float32)) == rules_of(run_of(gone, spaces_=None)) == []
    assert found(spaces.MultiDiscrete([2, 3])) == found(spaces.MultiBinary(3)) == ["entropy-gone"]


def test_every_substep_is_judged_by_its_own_values():
    several = {"scout": SPACES["0"], "carrier": SPACES["0"]}
    tags = {"ppo__scout__entropy": 0.5, "ppo__carrier__entropy": 0.001, "ppo__scout__explained_variance": 0.0}
    found = find(run_of(records(**tags), spaces_=several))
    assert [(one.rule, one.what.split()[0]) for one in found] == [
        ("entropy-gone", "ppo/carrier/entropy"),
        ("explained-variance", "ppo/scout/explained_variance"),
    ]


@pytest.mark.parametrize(
    ("set_to", "draws", "found"),
    [
        (10.0, 10.0, ()),
        (32.0, 10.0, ("where --replay.samples-per-insert is 32",)),
        (4.0, 10.0, ("where --replay.samples-per-insert is 4",)),
        (None, 10.0, ()),
        (None, 0.2, ("is drawn 0.2 times", "never learnt from")),
        (None, 64 * 30.0, ("30 updates for each",)),
    ],
)
def test_the_replay_ratio_of_now_is_compared_with_what_is_set(set_to: float | None, draws: float, found: tuple[str]):
    # what filled the buffer at first does not count
    tags = {
        "replay__inserts": lambda i: 10_000 + 100 * i,
        "replay__samples": lambda i: 100 * draws * i,
        "replay__samples_per_insert": 1.0,
    }
    run = run_of(records(**tags), {**REPLAY, "replay.samples_per_insert": set_to})
    assert rules_of(run) == ["replay-ratio"] * bool(found)
    assert all(part in find(run)[0].what for part in found)


def test_observations_with_large_bounds_are_to_be_normalised():
    def found(space: spaces.Space[Any], **settings: Any) -> list[str]:
        of = {"0": SubstepSpaces(observation=space, action=spaces.Discrete(2))}
        return [one.what for one in find(run_of([], {**SETTINGS, **settings}, of))]

    large = spaces.Box(-1e4, 1e4, (3,), np.float32)
    assert found(large)[0].startswith("the observation may be as large as 10,000, where about 1 is best")
    assert found(spaces.Dict(arm=large, eye=spaces.Box(0, 255, (8, 8), np.uint8)))[0].startswith("the observation arm ")
    assert found(large, normalize_observations=True) == []
    unbounded = spaces.Box(np.array([-4.8, -np.inf, -3.4e38]), np.array([4.8, np.inf, 3.4e38]), dtype=np.float64)
    assert len(found(spaces.Dict({f"leaf{i}": large for i in range(100)}))) == 16
    for space in (unbounded, spaces.Box(0, 255, (8, 8), np.uint8), spaces.Discrete(500)):
        assert found(space) == []


def test_large_integers_are_to_be_scaled_in_the_environment_because_normalisation_leaves_them_unchanged():
    def found(space: spaces.Space[Any], **settings: Any) -> list[tuple[str, str]]:
        of = {"0": SubstepSpaces(observation=space, action=spaces.Discrete(2))}
        run = run_of(records(train__observation_size=2500.0), {**SETTINGS, **settings}, of)
        return [(one.what.partition(",")[0], one.advice) for one in find(run) if one.rule == "observation-scale"]

    integers, floats = (spaces.Box(-900, 900, (3,), dtype) for dtype in (np.int64, np.float32))
    of_integers = (
        "scale observations in the environment, as a Box of floats: --normalize-observations leaves integers unchanged"
    )
    assert found(integers) == [("the observation may be as large as 900", of_integers)]
    both = spaces.Dict(gyro=floats, ticks=integers)
    assert found(both) == [
        ("the observation gyro may be as large as 900", "try --normalize-observations"),
        ("the observation ticks may be as large as 900", of_integers),
    ]
    assert found(both, normalize_observations=True) == [("the observation ticks may be as large as 900", of_integers)]


def test_observations_without_bounds_are_judged_by_those_of_the_first_batch_until_returns_rise():
    unbounded = {"0": SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (3,)), action=spaces.Discrete(2))}

    def found(size: float, space: dict[str, SubstepSpaces] = unbounded, **tags: Any) -> list[str]:
        rows = records(**HEALTHY | tags)
        # The later records have no such value.
        rows[0]["train/observation_size"] = size
        return [one.what for one in find(run_of(rows, spaces_=space)) if one.rule == "observation-scale"]

    (what,) = found(2500.0)
    assert what.startswith("observations of the first batch have a size of 2,500, where about 1 is best")
    assert found(90.0) == found(float("inf")) == []
    assert found(2500.0, train__mean_return=lambda i: 20.0 + 5 * i) == [], "it has learnt"
    bounded = {"0": SubstepSpaces(observation=spaces.Box(-1e4, 1e4, (3,)), action=spaces.Discrete(2))}
    assert len(found(2500.0, bounded)) == 1, "once"


def test_most_evaluations_skipped():
    (finding,) = evaluator_skips(3, 4)
    assert finding.what.startswith("4 due policies were not evaluated, 3 were")
    assert list(evaluator_skips(4, 4)) == []


def test_no_policy_evaluated():
    (finding,) = evaluator_skips(0, 4)
    assert finding.what == "none of 4 due policies was evaluated: no evaluator is connected, or it is too slow"
    assert "rollcast actor --role evaluate" in finding.advice
    assert list(evaluator_skips(0, 0)) == []


def test_a_run_without_an_episode_has_not_reached_its_goal():
    (finding,) = goal_missed(RunRecords(records=[], settings={"env_id": "CartPole-v1"}))
    assert "no episode has ended, and the goal is 475" in finding.what


def test_the_first_hundred_episodes_are_those_of_the_first_records():
    rows = records(episode_return__mean=lambda i: 10.0 if i < 10 else 1000.0, episode_return__std=3.0)
    first = first_returns(run_of(rows))
    assert first is not None
    assert (first.mean, first.std, first.n) == (10.0, 3.0, 100)
    # thirty episodes, and then a record of 500: the policy of these is another
    rows = [{"episode_return/mean": m, "episode_count/epoch": n, "env_steps": 1} for m, n in ((0.0, 30), (90.0, 500))]
    first = first_returns(run_of(rows))
    assert first is not None
    assert (first.mean, first.n) == (0.0, 30)
    assert first_returns(run_of([])) is None
    # four standard errors of 0.71 above 20
    assert has_learnt(run_of(records(train__mean_return=lambda i: 23.0 if i == 35 else 20.0)))
    assert not has_learnt(run_of(records(train__mean_return=lambda i: 23.0 if i == 25 else 22.0)))


VALUES = st.none() | st.floats() | st.integers(-(2**63), 2**63)
TAGS = sorted({*records(1, **HEALTHY, **SAMPLED)[0], "ppo/grad_norm", "replay/samples_per_insert"} - {"env_steps"})


@pytest.mark.slow
@given(st.lists(st.fixed_dictionaries({"env_steps": st.integers(0, 2**63)}, optional=dict.fromkeys(TAGS, VALUES))))
def test_values_of_any_size_are_judged_without_an_error(rows: list[dict[str, Any]]):
    assert len(find(run_of(rows * 10, REPLAY))) <= 16


def test_every_rule_names_its_source():
    assert all("Source: " in (rule.__doc__ or "") for rule in (*RULES, evaluator_skips, goal_missed))
