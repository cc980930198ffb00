"""The policies that pass through relays, over real connections: to actors, and to evaluators."""

import contextlib
import time
from types import SimpleNamespace

import numpy as np
import pytest

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.evaluations import EvaluatedPolicy, Evaluations
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RefusedError
from rollcast.services.joining.evaluation import EvaluationPlan, EvaluationReport, PlayedEpisodes
from rollcast.services.joining.join import ActorRole, Relay
from rollcast.services.policies.bfloat16 import rounded_to_bfloat16
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.encodings import ENCODINGS
from rollcast.tools.relay import policies as relay_policies
from rollcast.tools.relay.relay import RollcastRelay
from tests.chaos.proxy import Proxy
from tests.integration.learner_fakes import offer
from tests.policies import LostPolicy
from tests.processes import wait_until
from tests.relays import Learner, relaying, serve_learner
from tests.rollouts import make_rollout

# they wait for relays, which look for what is new once a second
pytestmark = pytest.mark.slow


def test_policies_pass_as_they_are_and_only_the_newest(learner: Learner, relay: RollcastRelay):
    with LearnerClient(relay.address) as client:
        subscription = client.subscribe_policy()
        policies = iter(subscription)
        assert next(policies)[0] == 1
        learner.source.publish(2, {"w": np.arange(3, dtype=np.float32)})
        version, state = next(policies)
        assert (version, state["w"].tolist()) == (2, [0, 1, 2])
        assert relay.policies.newest().chunks == learner.source.newest().chunks
        assert client.get_policy()[0] == 2
        learner.source.end()
        assert list(policies) == []
        assert relay.policies.ended


@pytest.mark.parametrize("takes_with_answer", [False, True], ids=["subscription", "answer"])
def test_an_actor_behind_a_relay_is_sent_one_policy_with_its_credit_and_none_before(takes_with_answer: bool):
    with (
        serve_learner(queue=RolloutQueue(2)) as learner,
        relaying(learner.address) as relay,
        LearnerClient(relay.address) as client,
    ):
        agreement = client.join(offer())
        policies, came = iter(client.subscribe_policy(actor_id="a")), []
        assert next(policies)[0] == 1
        takes = {"on_policy": lambda version, *_: came.append(version), "policy_version": 1}
        uplink = client.open_rollout_stream("a", agreement.incarnation, **(takes if takes_with_answer else {}))
        answers = uplink.responses()
        for sequence in (1, 2):
            uplink.send(make_rollout(sequence))
        assert [next(answers).acknowledged_sequence for _ in range(2)] == [0, 1]
        wait_until(lambda: relay.intake.n_rollouts == 2, "the second rollout to be on its way")
        for version in (2, 3, 4):
            learner.source.publish(version, {"w": np.zeros(3, np.float32)})
            wait_until(lambda version=version: relay.policies.version == version, "the relay to have it")
        assert came == []
        assert client.join(offer()).policy_version == 1, "it waits for room, and was not sent the newer ones"
        learner.take(1)
        assert next(answers).acknowledged_sequence == 2
        if takes_with_answer:
            assert came == [4]
            assert client.join(offer()).policy_version == 4
            learner.source.publish(5, {"w": np.zeros(3, np.float32)})
        assert next(policies)[0] == (5 if takes_with_answer else 4), "what came with the answer does not come besides"
        uplink.cancel()


@pytest.mark.parametrize("n_relays", [1, 2])
def test_a_version_that_was_lost_on_its_way_to_a_relay_comes_once_actors_have_asked_in_vain_for_15_s(
    monkeypatch: pytest.MonkeyPatch, n_relays: int
):
    skew_s = 0.0
    monkeypatch.setattr(relay_policies, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skew_s))
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve_learner(rule=CreditRule(policy_version=lambda: 2)))
        address = learner.address
        relays = []
        for _ in range(n_relays):
            relays.append(stack.enter_context(relaying(address)))
            address = relays[-1].address
        client = stack.enter_context(LearnerClient(address))
        wait_until(lambda: relays[0].policies.version == 1, "the first version")
        lost = LostPolicy(2, learner.source.newest().file)
        with learner.source.changed:
            learner.source.encoded = lost
            learner.source.changed.notify_all()
        wait_until(lambda: lost.was_sent, "the next version to be on its way")
        client.join(offer())
        skew_s = 14.0
        client.join(offer())
        assert len(learner.source.subscribed) == 1
        skew_s = 16.0
        client.join(offer())
        wait_until(lambda: relays[-1].policies.version == 2, "the version that was lost")
        assert len(learner.source.subscribed) == 2


def test_a_relay_hears_which_version_is_the_newest_and_an_actor_which_one_it_was_sent():
    with (
        serve_learner(rule=CreditRule(policy_version=lambda: 8, sent_version=lambda _actor_id: 5)) as learner,
        relaying(learner.address) as relay,
    ):
        wait_until(lambda: relay.policies.version == 1, "the policy")
        behind = offer(via=(Relay("another", 1),))
        for address, newest, sent in ((learner.address, 8, 5), (relay.address, 1, 0)):
            with LearnerClient(address) as client:
                assert client.join(behind).policy_version == newest
                assert client.join(offer()).policy_version == sent


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_relay_takes_policies_in_its_encoding_and_has_the_learners_files(learner: Learner, name: str):
    state = {"w": rounded_to_bfloat16(np.random.default_rng(0).standard_normal(300_000, np.float32))}
    proxy = Proxy(int(learner.address.rpartition(":")[2]), seed=0)
    with contextlib.closing(proxy), relaying(proxy.address, encodings=ENCODINGS[name]) as relay:
        with LearnerClient(relay.address) as client:
            policies = iter(client.subscribe_policy())
            assert next(policies)[0] == 1
            for version in range(2, 8):
                learner.source.publish(version, state)
                came, arrays = next(policies)
                assert came == version
                np.testing.assert_array_equal(arrays["w"], state["w"], strict=True)
                assert relay.policies.newest().digest == learner.source.newest().digest
                state["w"][version::100] = version
    n_files = proxy.n_bytes_down / learner.source.newest().n_bytes
    least, most = {"full": (6, 7), "bfloat16": (3, 3.5), "delta": (0.3, 0.5)}[name]
    assert least < n_files < most


def test_a_relay_that_lost_its_learner_for_a_while_is_sent_the_difference(learner: Learner):
    state = {"w": np.random.default_rng(0).standard_normal(300_000, np.float32)}
    learner.source.publish(2, state)
    proxy = Proxy(int(learner.address.rpartition(":")[2]), seed=0)
    with contextlib.closing(proxy), relaying(proxy.address, encodings=ENCODINGS["delta"]) as relay:
        wait_until(lambda: relay.policies.version == 2, "the policy")
        proxy.inject("cut", 0.0, 0.0)
        before = proxy.n_bytes_down
        state["w"][::1000] += 1
        learner.source.publish(3, state)
        wait_until(lambda: relay.policies.version == 3, "the next policy")
        assert relay.policies.newest().digest == learner.source.newest().digest
        assert proxy.n_bytes_down - before < learner.source.newest().n_bytes / 10


@pytest.mark.parametrize("name", ENCODINGS)
def test_evaluators_join_play_and_report_through_a_relay(name: str):
    desk = Evaluations(EvaluationPlan(n_episodes=2, seed=5))
    encodings = ENCODINGS[name]
    with serve_learner(evaluations=desk) as learner, relaying(learner.address, encodings=encodings) as relay:
        with LearnerClient(relay.address) as client:
            agreement = client.join(offer("e", role=ActorRole.EVALUATE))
            assert agreement.evaluation == desk.plan
            policies = iter(client.subscribe_policy(evaluator_id="e", incarnation=agreement.incarnation))
            for version in (3, 4):
                state = {"w": np.full(1, version, np.float32)}
                desk.offer(
                    EvaluatedPolicy(version=version, env_steps=version, state=state), encode_policy(version, state)
                )
                assert next(policies)[0] == version
                played = PlayedEpisodes(policy_version=version, returns=(1.0, 3.0), lengths=(1, 2), seconds=0.5)
                client.report_evaluation(
                    EvaluationReport(
                        actor_id="e",
                        incarnation=agreement.incarnation,
                        learner_nonce=agreement.learner_nonce,
                        outcome=played,
                    )
                )
            assert [result.policy.version for result in desk.take()] == [3, 4]
    with serve_learner() as learner, relaying(learner.address) as relay, LearnerClient(relay.address) as client:
        with pytest.raises(RefusedError, match="this run has no evaluations"):
            client.join(offer("e", role=ActorRole.EVALUATE))
