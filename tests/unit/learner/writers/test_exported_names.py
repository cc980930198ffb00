import re

import pytest

from rollcast.learner.writers.exported_names import exported_name
from rollcast.learner.writers.metric_names import ALGORITHM_METRICS, EVENT_METRICS, METRICS

EVERY = (*METRICS, *ALGORITHM_METRICS, *EVENT_METRICS)


def test_every_metric_has_a_name_of_its_own():
    names = [exported_name(metric.tag).whole for metric in EVERY]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"rollcast_[a-z][a-z0-9]*(_[a-z0-9]+)*", name) for name in names)


@pytest.mark.parametrize(
    ("tag", "whole", "labels", "factor"),
    [
        ("train/updates", "rollcast_train_updates_total", {}, 1.0),
        ("train/mean_return", "rollcast_train_mean_return", {}, 1.0),
        ("speed/waiting_fraction", "rollcast_speed_waiting_ratio", {}, 1.0),
        ("replay/insert_wait_s", "rollcast_replay_insert_wait_seconds_total", {}, 1.0),
        ("durable/commit_ms", "rollcast_durable_commit_seconds", {}, 1e-3),
        ("replay/scout/size", "rollcast_replay_size", {"substep": "scout"}, 1.0),
        ("impala/red/blue/entropy", "rollcast_impala_entropy", {"substep": "red/blue"}, 1.0),
        ("mine/loss", "rollcast_reported", {"tag": "mine/loss"}, 1.0),
        ("shots/mean[left, far]", "rollcast_reported", {"tag": "shots/mean[left, far]"}, 1.0),
        ("noslash", "rollcast_reported", {"tag": "noslash"}, 1.0),
    ],
)
def test_a_tag_becomes_a_name_in_base_units(tag: str, whole: str, labels: dict[str, str], factor: float):
    place = exported_name(tag)
    assert (place.whole, place.labels, place.factor) == (whole, labels, factor)


def test_what_only_grows_is_a_counter():
    counters = {metric.tag for metric in EVERY if exported_name(metric.tag).whole.endswith("_total")}
    assert counters == {metric.tag for metric in EVERY if metric.counts}
    assert {"train/episodes", "replay/samples", "episode_count/cumulative"} <= counters
    assert not counters & {"train/policy_version", "queue/size", "episode_count/epoch"}
