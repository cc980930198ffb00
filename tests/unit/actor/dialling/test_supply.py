"""A server with places, and the numbers that it shows, as an actor has them."""

import queue

import grpc
import numpy as np
import pytest

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.actor.dialling.batch_rule import BatchRule
from rollcast.actor.dialling.supply import DialIn, DialledSupply
from rollcast.actor.inference.engine import InferenceEngine
from rollcast.actor.inference.followed_policies import FollowedPolicies
from rollcast.services.environments.dialled import Farewell
from rollcast.services.security.security import PLAIN_SERVER
from rollcast.v1 import environment_pb2_grpc
from tests.play_messages import FLAT, hello, turn, turns
from tests.processes import DEADLINE_S


@pytest.fixture
def supply():
    with DialledSupply(DialIn("127.0.0.1:0", PLAIN_SERVER), 2, stall_s=DEADLINE_S) as supply:
        yield supply


@pytest.fixture
def game(supply):
    requests = queue.Queue()
    with grpc.insecure_channel(supply.address) as channel:
        call = environment_pb2_grpc.EnvironmentServiceStub(channel).Play(iter(requests.get, None))
        yield requests.put, call
        requests.put(None)


def figures(metrics):
    return {
        (sample.name.removeprefix("rollcast_actor_"), sample.labels.get("quantile")): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_shows_spaces_and_plays_with_as_many_places_as_agreed(supply, game):
    say, call = game
    assert (supply.n_envs, supply.addresses) == (2, supply.address)
    metrics = ActorMetrics()
    metrics.serves(supply, InferenceEngine(FollowedPolicies("localhost:1")))
    say(hello())
    assert supply.wait(lambda: True)
    assert supply.spaces == FLAT
    environments = supply.take(2)
    environments.begin([5, 6])
    assert list(next(call).welcome.seeds) == [5]
    assert figures(metrics)["answer_seconds", "0.99"] == 0.0
    say(turns(turn()))
    assert environments.wait(BatchRule(), is_active=lambda: True)
    environments.news()
    environments.act({0: [np.int64(2)]}, policy_version=1)
    assert next(call).actions.policy_version == 1
    found = figures(metrics)
    assert (found["clients", None], found["live_environments", None]) == (1, 1)
    assert (found["answers_total", None], found["batches_total", None]) == (1, 1)
    assert 0.0 < found["answer_seconds", "0.5"] == found["answer_seconds", "0.99"]


def test_says_farewell(supply, game):
    say, call = game
    say(hello())
    supply.wait(lambda: True)
    supply.environments.end(Farewell(reason="training has ended", training_ended=True))
    assert next(call).farewell.training_ended


def test_a_wait_for_clients_can_be_stopped(supply):
    assert not supply.wait(lambda: False)
