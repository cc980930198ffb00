import dataclasses

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.services.joining.activity import ActingState
from tests.rollouts import make_rollout


def samples(metrics: ActorMetrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_rollouts_are_counted_with_their_steps_and_episodes():
    metrics, rollout = ActorMetrics(), make_rollout()
    before = samples(metrics)
    assert before["rollcast_actor_rollouts_total",] == 0
    metrics.joined("left-arm", 4)
    for version in (3, 4):
        metrics.sent(dataclasses.replace(rollout, policy_version=version), dropped_episodes=2 * version)
    found = samples(metrics)
    assert found["rollcast_actor_env_steps_total",] == 2 * rollout.n_env_steps
    assert found["rollcast_actor_episodes_total",] == 2 * (rollout.terminated | rollout.truncated).sum()
    assert found["rollcast_actor_rollouts_total",] == 2
    assert found["rollcast_actor_dropped_episodes_total",] == metrics.activity().dropped_episodes == 8
    assert found["rollcast_actor_policy_version",] == 4
    assert found["rollcast_actor_environments",] == 4
    assert any(name == "rollcast_actor_info" and "left-arm" in labels for name, *labels in found)


def test_time_is_shown_by_state():
    metrics = ActorMetrics()
    metrics.clock.enter(ActingState.WAITING_FOR_POLICY)
    found = samples(metrics)
    assert found["rollcast_actor_state_seconds_total", "waiting_for_policy"] >= 0
    assert sum(name == "rollcast_actor_state_seconds_total" for name, *_ in found) == len(ActingState)


def test_the_report_for_the_learner_has_the_time_by_state_and_the_policy_in_use():
    metrics = ActorMetrics()
    metrics.clock.enter(ActingState.ACTING)
    before = metrics.activity()
    assert (before.state, before.policy_version) == (ActingState.ACTING, 0)
    metrics.loaded(7)
    after = metrics.activity()
    assert (after.policy_version, len(after.seconds)) == (7, len(ActingState))
    assert 0 <= after.policy_age_s <= sum(after.seconds)
    assert all(late >= early for early, late in zip(before.seconds, after.seconds, strict=True))
