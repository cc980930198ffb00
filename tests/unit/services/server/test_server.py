import threading

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    ConfigurationError,
    LearnerUnreachableError,
    NotReadyError,
    UnknownActorError,
)
from rollcast.services.limits.limits import Limits
from rollcast.services.server import server
from rollcast.services.server.server import HISTORY_SERVICE, LEARNER_SERVICE, POLICY_SERVICE, ROLLOUT_SERVICE
from tests.integration.learner_fakes import DEADLINE_S, offer, serve
from tests.rollouts import make_rollout


def test_health_reports_not_serving_after_drain(learner, client):
    services = ("", ROLLOUT_SERVICE, POLICY_SERVICE, LEARNER_SERVICE)
    assert all(client.is_serving(service) for service in services)
    with pytest.raises(UnknownActorError):
        client.is_serving("no.such.Service")
    client.join(offer())
    uplink = client.open_rollout_stream("a", 1)
    responses = uplink.responses()
    next(responses)
    learner.server.drain()
    assert not any(client.is_serving(service) for service in services)
    with pytest.raises(NotReadyError, match="draining"):
        list(client.subscribe_policy())
    uplink.send(make_rollout(1))  # what is open goes on
    assert next(responses).acknowledged_sequence == 1
    assert client.status().env_steps == 12
    uplink.cancel()


def test_unknown_health_method_is_unimplemented(learner, caplog):
    with make_channel(learner.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caplog.records == []


def test_reflection_knows_every_service_that_is_served(learner):
    """There are no replay buffers and no relays here."""
    own = {ROLLOUT_SERVICE, POLICY_SERVICE, LEARNER_SERVICE, HISTORY_SERVICE}
    with make_channel(learner.address) as connection:
        database = ProtoReflectionDescriptorDatabase(connection)
        assert set(database.get_services()) == own | {health.SERVICE_NAME, reflection.SERVICE_NAME}
        pool = descriptor_pool.DescriptorPool(database)
        assert {m.name for m in pool.FindServiceByName(POLICY_SERVICE).methods} == {
            "GetPolicy",
            "SubscribePolicy",
            "Act",
        }


def test_rejects_max_actors_below_1():
    with pytest.raises(ConfigurationError, match="max_actors is 0"), serve(limits=Limits(max_actors=0)):
        pass


def test_a_server_before_its_start_has_no_port():
    idle = server.make_server("127.0.0.1:0", sink=None, source=None, control=None)
    with pytest.raises(NotReadyError, match="no port yet"):
        _ = idle.port
    idle.stop(0)


def test_stop_leaves_nothing_behind_and_may_be_called_twice(learner, client):
    client.status()
    learner.server.stop(0.1)
    learner.server.stop(0.1)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rollcast-rpc")]
    with pytest.raises(LearnerUnreachableError):
        client.status()


def test_large_policies_travel_over_a_unix_socket(tmp_path):
    with serve(f"unix:{tmp_path}/x") as learner, LearnerClient(learner.address) as client:
        learner.source.publish(1, {"w": np.arange(3_000_000, dtype=np.float32)})
        assert client.get_policy()[1]["w"][-1] == 2_999_999
