"""A server with places, and the numbers that it shows, as an actor has them."""

import contextlib
import queue
import threading

import grpc
import numpy as np
import pytest

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.actor.dialling.batch_rule import BatchRule
from rollcast.actor.dialling.supply import DialIn, DialledSupply
from rollcast.actor.inference.engine import InferenceEngine
from rollcast.actor.inference.followed_policies import FollowedPolicies
from rollcast.actor.policies.make import make_policy
from rollcast.actor.workers.make import make_worker
from rollcast.services.environments.dialled import Farewell
from rollcast.services.errors import SpacesMismatchError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.security.security import PLAIN_SERVER
from rollcast.v1 import environment_pb2_grpc
from tests.play_messages import FLAT, TEAM, agent, hello, turn, turns
from tests.processes import DEADLINE_S, wait_until
from tests.unit.actor.metric_figures import figures


@pytest.fixture
def supply():
    with DialledSupply(DialIn("127.0.0.1:0", PLAIN_SERVER), 2, stall_s=DEADLINE_S) as supply:
        yield supply


@contextlib.contextmanager
def dialled(address):
    requests = queue.Queue()
    with grpc.insecure_channel(address) as channel:
        call = environment_pb2_grpc.EnvironmentServiceStub(channel).Play(iter(requests.get, None))
        yield requests.put, call
        requests.put(None)


@pytest.fixture
def game(supply):
    with dialled(supply.address) as found:
        yield found


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


def test_a_first_client_whose_spaces_the_learner_refuses_is_told_and_the_next_one_plays(supply, game):
    say, call = game
    offered = []

    def act():
        offered.append(supply.spaces)
        if len(offered) == 1:
            raise SpacesMismatchError("the learner has others; expected those; dial in with them")
        return True

    serving = threading.Thread(target=supply.serve, args=(act,), kwargs={"is_active": lambda: True})
    serving.start()
    say(hello())
    with pytest.raises(grpc.RpcError) as refused:
        next(call)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "the learner has others" in refused.value.details()
    with dialled(supply.address) as (say, call):
        say(hello(offered=TEAM))
        assert next(call).farewell.training_ended
    serving.join(DEADLINE_S)
    assert not serving.is_alive()
    assert offered == [FLAT, TEAM]


class TestOneOfTwoClients:
    """The other one plays on, whatever this one does."""

    @pytest.fixture
    def rollouts(self, supply):
        trainable = pytest.importorskip("rollcast.actor.policies.trainable", reason="needs torch")
        with dialled(supply.address) as (say, call):
            say(hello("steady"))
            assert supply.wait(lambda: True)
            policy = make_policy(FLAT, PolicySpec(), seed=0)
            policy.load(1, trainable.TorchPolicy(FLAT, PolicySpec()).state_arrays())
            environments = supply.take(2)
            worker = make_worker(environments, policy, 4, actor_id="a", incarnation=1, env_seed=0)

            def play():
                next(call)
                with contextlib.suppress(grpc.RpcError, StopIteration):
                    while True:
                        say(turns(turn()))
                        next(call)

            playing = threading.Thread(target=play)
            playing.start()
            yield worker.collect
            supply.environments.end(Farewell(reason="training has ended", training_ended=True))
            playing.join(DEADLINE_S)
            assert not playing.is_alive()

    def test_that_sends_a_huge_observation_is_refused_by_name(self, rollouts, game):
        say, call = game
        say(hello("huge"))
        next(call)
        huge = np.array([1e30, 0.0], np.float32).tobytes()
        say(turns(turn(agent(observation=(huge,)))))
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "client 'huge', environment 0" in refused.value.details()
        self.check_the_other(rollouts)

    def test_that_vanishes_in_mid_episode_leaves_its_place(self, rollouts, supply):
        with dialled(supply.address) as (say, call):
            say(hello("gone"))
            next(call)
            say(turns(turn()))
            rollouts()
            call.cancel()
        self.check_the_other(rollouts)
        wait_until(lambda: rollouts() is not None and supply.environments.n_live == 1, "its place to be free")

    def check_the_other(self, rollouts):
        for _ in range(3):
            rollout = rollouts()
            assert rollout.valid is None or rollout.valid[:, 0].all()


def test_a_wait_for_clients_can_be_stopped(supply):
    assert not supply.wait(lambda: False)
