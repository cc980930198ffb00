"""The options of charts: every point is in them, gaps are gaps, and a chart without data says what it waits for."""

import dataclasses
import json
import math

import pytest

from rollcast.services.history.history import EvaluationPoint, PolicyDelays
from rollcast.tools.dashboard.charts import lag_chart, metric_chart, return_chart, speed_chart
from rollcast.tools.dashboard.metrics import first_metrics
from tests.histories import curve, points


def series(options, name):
    (found,) = [one for one in options["series"] if one["name"] == name]
    return found


def evaluation(time_s, **changes):
    values = {
        "time_s": time_s,
        "env_steps": 100,
        "policy_version": 1,
        "mean_return": 5.0,
        "ci_low": 4.0,
        "ci_high": 6.0,
    }
    return EvaluationPoint(**(values | changes))


def drawn(points=(), evaluations=(), **changes):
    return return_chart(points, evaluations, **({"started_unix_s": 0.0, "stop_return": None, "over": "time"} | changes))


class TestReturn:
    def test_has_every_point_over_time_or_steps(self):
        given = points(3, mean_return=7.0)
        assert series(drawn(given), "training, mean of 100 episodes")["data"] == [[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]]
        over_steps = series(drawn(given, over="steps"), "training, mean of 100 episodes")["data"]
        assert over_steps == [[100, 7.0], [200, 7.0], [300, 7.0]]

    def test_leaves_a_gap_where_the_learner_was_down(self):
        given = (*points(2, mean_return=1.0), *points(2, end_s=60.0, mean_return=2.0))
        data = series(drawn(given), "training, mean of 100 episodes")["data"]
        assert data == [[1.0, 1.0], [2.0, 1.0], [59.0, None], [59.0, 2.0], [60.0, 2.0]]

    def test_marks_the_best_evaluation_alone(self):
        given = [evaluation(1.0, best=True), evaluation(2.0, best=True, mean_return=9.0), evaluation(3.0)]
        options = drawn(evaluations=given)
        assert series(options, "best")["data"] == [[2.0, 9.0]]
        assert len(series(options, "evaluation")["data"]) == 3

    def test_leaves_out_intervals_without_ends(self):
        given = [evaluation(1.0), evaluation(2.0, ci_low=-math.inf, ci_high=math.inf)]
        options = drawn(evaluations=given)
        assert series(options, "95 % confidence interval")["data"] == [[1.0, 4.0, 6.0]]
        json.dumps(options, allow_nan=False)

    def test_draws_the_threshold_if_there_is_one(self):
        line = "training, mean of 100 episodes"
        assert series(drawn(stop_return=200.0), line)["markLine"]["data"] == [{"yAxis": 200.0}]
        assert series(drawn(), line)["markLine"]["data"] == []


class TestMetric:
    def test_has_the_values_since_the_begin_over_time_or_steps(self):
        given = {"curve": curve("loss", 3.0, 2.0, 1.0), "begin_unix_s": 1.0, "started_unix_s": 0.5}
        assert series(metric_chart(**given, over="time"), "loss")["data"] == [[1.5, 2.0], [2.5, 1.0]]
        assert series(metric_chart(**given, over="steps"), "loss")["data"] == [[200, 2.0], [300, 1.0]]

    def test_the_first_ones_are_those_that_one_looks_for(self):
        names = [
            *("ppo/approx_kl", "ppo/entropy", "train/mean_return", "ppo/learning_rate", "ppo/policy_loss"),
            *("ppo/grad_norm", "ppo/value_loss", "speed/x"),
        ]
        assert first_metrics(names) == [
            *("ppo/policy_loss", "ppo/value_loss", "ppo/entropy", "ppo/approx_kl", "ppo/learning_rate")
        ]


class TestSpeed:
    def test_has_the_steps_and_the_waits_of_every_point(self):
        options = speed_chart(points(2, env_steps_per_second=41_200.0, waiting_fraction=0.381), started_unix_s=0.0)
        assert series(options, "env steps/s")["data"] == [[1.0, 41_200.0], [2.0, 41_200.0]]
        assert series(options, "trainer waits")["data"] == [[1.0, 38.1], [2.0, 38.1]]

    def test_slow_updates_are_no_peaks_between_zeros(self):
        """An update every four seconds; after the last one come three seconds, and then six."""

        def data(seconds):
            of_time = [
                dataclasses.replace(
                    point,
                    env_steps=1000 * (min(second, 12) // 4),
                    env_steps_per_second=1000.0 * (second % 4 == 0 and second <= 12),
                )
                for second, point in enumerate(points(seconds), start=1)
            ]
            return series(speed_chart(of_time, started_unix_s=0.0), "env steps/s")["data"]

        assert data(15) == [[1.0, 0.0], [4.0, 333.3], [8.0, 250.0], [12.0, 250.0]]
        assert data(18) == [*data(15), [18.0, 0.0]], "there is no update any more"


class TestLag:
    def test_shows_shares_from_lag_zero_on(self):
        options = lag_chart(PolicyDelays(trajectories_by_lag=(60, 30, 10, 0, 0, 0, 0)))
        assert options["series"][0]["data"] == [60.0, 30.0, 10.0, 0, 0]
        assert options["xAxis"]["data"] == ["0", "1", "2", "3", "4"]
        assert options["series"][0]["markLine"]["data"] == []

    def test_marks_the_limit(self):
        options = lag_chart(PolicyDelays(trajectories_by_lag=(1,), max_policy_lag=8))
        assert options["series"][0]["markLine"]["data"] == [{"xAxis": "8"}]
        beyond = lag_chart(PolicyDelays(trajectories_by_lag=(1,), max_policy_lag=500))
        assert beyond["series"][0]["markLine"]["data"] == []

    def test_names_the_bar_of_all_larger_lags(self):
        counts = [0] * 32 + [7]
        options = lag_chart(PolicyDelays(trajectories_by_lag=tuple(counts)))
        assert options["xAxis"]["data"][-1] == "32+"
        assert options["series"][0]["data"][-1] == 100.0


@pytest.mark.parametrize(
    ("options", "title"),
    [
        (drawn(points(3)), "waiting for the first episode to end"),
        (drawn(points(3, mean_return=1.0)), ""),
        (speed_chart((), started_unix_s=0.0), "waiting for the first update"),
        (lag_chart(PolicyDelays()), "waiting for rollouts to train on"),
    ],
)
def test_a_chart_says_what_it_waits_for(options, title):
    assert options["title"]["text"] == title
