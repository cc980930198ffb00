import math
import re

import pytest

from rollcast.learner.writers.exported_names import exported_name
from rollcast.learner.writers.metric_names import ALGORITHM_METRICS, EVENT_METRICS, METRICS
from rollcast.learner.writers.prometheus import PrometheusWriter
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase


def samples(writer: PrometheusWriter) -> dict[tuple[str, ...], float]:
    """Returns the values by name and labels."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sample.labels.items())): sample.value
        for family in writer.collect()
        for sample in family.samples
    }


def test_before_the_first_record_there_is_what_the_learner_knows():
    status = LearnerStatus(phase=Phase.STARTING, algorithm="ppo", software_version="1", run_dir="runs/a")
    found = samples(PrometheusWriter(lambda: status, tuple))
    assert found["rollcast_learner_info", "version=1", "algorithm=ppo", "run_dir=runs/a"] == 1
    assert found["rollcast_learner_phase", "phase=starting"] == 1
    assert found["rollcast_learner_phase", "phase=training"] == 0
    assert math.isnan(found["rollcast_train_mean_return",])
    assert found["rollcast_train_updates_total",] == 0


def test_values_of_records_stay_and_those_that_change_meanwhile_are_of_now():
    now = LearnerStatus(phase=Phase.TRAINING, updates=9, queue_size=3, mean_return=2.5, waiting_s=7.0)
    writer = PrometheusWriter(lambda: now, tuple)
    writer.write(100, {"train/updates": 5.0, "ppo/entropy": 1.5, "durable/commit_ms": 4.0, "mine/x": 1.0})
    writer.write(150, {"queue/policy_lag_mean": 1.5, "speed/waiting_fraction": 0.25})
    writer.write(200, {"eval/mean_return": 11.0, "ppo/entropy": 1.25})
    writer.close()
    found = samples(writer)
    assert found["rollcast_train_updates_total",] == 9
    assert found["rollcast_train_mean_return",] == 2.5
    assert found["rollcast_queue_size",] == 3
    assert found["rollcast_learner_waiting_seconds",] == 7.0
    assert found["rollcast_ppo_entropy",] == 1.25
    assert found["rollcast_queue_policy_lag_mean",] == 1.5, "as in the record, not over the run"
    assert found["rollcast_speed_waiting_ratio",] == 0.25
    assert found["rollcast_durable_commit_seconds",] == 0.004
    assert found["rollcast_eval_mean_return",] == 11.0
    assert found["rollcast_reported", "tag=mine/x"] == 1.0


def test_actors_are_counted_by_state_and_named():
    actors = [
        ActorInfo(actor_id="left", slot=0, incarnation=2, state=ActorState.LOST, env_steps=64, rollouts=2, idle_s=9.0),
        ActorInfo(actor_id="right", slot=1, incarnation=1, state=ActorState.STREAMING, policy_version=5, idle_s=0.5),
    ]
    found = samples(PrometheusWriter(lambda: LearnerStatus(phase=Phase.TRAINING), lambda: actors))
    states = {state: found["rollcast_learner_actors", f"state={state.name.lower()}"] for state in ActorState}
    assert states == dict.fromkeys(ActorState, 0) | {ActorState.LOST: 1, ActorState.STREAMING: 1}
    assert found["rollcast_learner_actor_env_steps_total", "actor=left"] == 64
    assert ("rollcast_learner_actor_idle_seconds", "actor=left") not in found, "only a connected one can be silent"
    assert found["rollcast_learner_actor_idle_seconds", "actor=right"] == 0.5
    assert found["rollcast_learner_actor_incarnation", "actor=left"] == 2
    assert found["rollcast_learner_actor_policy_version", "actor=right"] == 5


def test_an_actor_that_has_gone_is_forgotten_after_a_quarter_of_an_hour():
    actors = [
        ActorInfo(actor_id="lost", slot=0, incarnation=1, state=ActorState.LOST, idle_s=901.0),
        ActorInfo(actor_id="failed", slot=1, incarnation=1, state=ActorState.FAILED, idle_s=100.0),
        ActorInfo(actor_id="slow", slot=2, incarnation=1, state=ActorState.STREAMING, idle_s=9000.0),
    ]
    found = samples(PrometheusWriter(lambda: LearnerStatus(phase=Phase.TRAINING), lambda: actors))
    named = {labels[0] for name, *labels in found if name == "rollcast_learner_actor_rollouts_total"}
    assert named == {"actor=failed", "actor=slow"}
    assert found["rollcast_learner_actors", "state=lost"] == 0


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
