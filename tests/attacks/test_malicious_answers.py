"""Every field of every answer, as only a malicious learner or replay server sends it: clients say so, and live."""

import contextlib
from concurrent import futures

import grpc
import pytest
from google.protobuf import message_factory

from rollcast.services.errors import DamagedMessageError, RollcastError
from rollcast.services.spaces.codec import environment_spaces_to_proto
from rollcast.services.wire.seal import seal
from rollcast.v1 import history_pb2, learner_pb2, policy_pb2, relay_pb2, replay_pb2, rollout_pb2
from tests.attacks.fields import Sizes, spoilt
from tests.attacks.walker import PLAIN_BY_TYPE
from tests.client_calls import CALLS, client_of
from tests.contract.golden_messages import golden_messages
from tests.integration.learner_fakes import SPACES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZES = Sizes(n_bytes=3000, n_members=300, message_bytes=20_000)
GOLDEN = golden_messages()
STATUS = learner_pb2.LearnerStatus.FromString(GOLDEN["learner_status"])
CHUNK = policy_pb2.GetPolicyResponse.FromString(GOLDEN["policy_chunk"]).chunk


# An honest answer of each RPC; where there is none, the answer is empty.
ANSWERS = {
    "RolloutService/Join": rollout_pb2.JoinResponse.FromString(GOLDEN["join_response"]),
    "RolloutService/StreamRollouts": rollout_pb2.StreamRolloutsResponse(credit_sequence=1),
    "RelayService/StreamBundles": relay_pb2.StreamBundlesResponse(learner_nonce=1),
    "PolicyService/GetPolicy": policy_pb2.GetPolicyResponse(chunk=CHUNK),
    "PolicyService/SubscribePolicy": policy_pb2.SubscribePolicyResponse(chunk=CHUNK),
    "PolicyService/Act": policy_pb2.ActResponse(policy_version=1),
    "LearnerService/DescribeLearner": learner_pb2.DescribeLearnerResponse(
        description=learner_pb2.LearnerDescription(substeps=environment_spaces_to_proto(SPACES), n_rollout_steps=3)
    ),
    "LearnerService/GetStatus": learner_pb2.GetStatusResponse(status=STATUS),
    "LearnerService/WatchStatus": learner_pb2.WatchStatusResponse(status=STATUS),
    "LearnerService/ListActors": learner_pb2.ListActorsResponse(
        actors=[learner_pb2.ActorInfo.FromString(GOLDEN["actor_info"])]
    ),
    "LearnerService/SaveCheckpoint": learner_pb2.SaveCheckpointResponse(path="p"),
    "HistoryService/WatchHistory": history_pb2.WatchHistoryResponse.FromString(GOLDEN["history"]),
    "ReplayService/GetReplayInfo": replay_pb2.GetReplayInfoResponse(
        info=replay_pb2.ReplayInfo(substeps=environment_spaces_to_proto(SPACES))
    ),
    "ReplayService/Sample": replay_pb2.SampleResponse(parts=1),
}
FILES = (history_pb2, learner_pb2, policy_pb2, relay_pb2, replay_pb2, rollout_pb2)
METHODS = {
    f"{service.name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Plain:
    """An honest message of every type: one that the other walk has, or an empty one."""

    def honest(self, descriptor):
        known = PLAIN_BY_TYPE.get(descriptor.full_name)
        return known if known is not None else message_factory.GetMessageClass(descriptor)()

    def held(self, field):
        del field


class Malicious(grpc.GenericRpcHandler):
    """Answers every call with the same messages."""

    def __init__(self):
        self.answers = []

    def service(self, handler_call_details):
        del handler_call_details
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(self.answers))


@pytest.fixture(scope="module")
def malicious():
    handler = Malicious()
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(0.0).wait()


def test_every_rpc_has_a_client_here():
    assert set(CALLS) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_client_returns_or_raises_an_error_of_the_tree(malicious, name):
    handler, address = malicious
    base = ANSWERS.get(name) or message_factory.GetMessageClass(METHODS[name].output_type)()
    with client_of(name, address) as client:
        for what, message in [("honest", base), *spoilt(lambda: base, Plain(), SIZES)]:
            handler.answers = [message.SerializeToString()]
            if METHODS[name].client_streaming:
                handler.answers.insert(0, base.SerializeToString())
            try:
                with contextlib.suppress(RollcastError, StopIteration):
                    CALLS[name](client)
            except BaseException as error:
                error.add_note(f"{name}: {what}")
                raise


def test_an_answer_without_the_digest_that_the_first_one_had_is_damaged(malicious):
    handler, address = malicious
    name = "RolloutService/StreamRollouts"
    answer = ANSWERS[name].SerializeToString()
    handler.answers = [seal(answer), answer]
    with (
        client_of(name, address) as client,
        pytest.raises(DamagedMessageError, match="it has no digest, and the first of its stream had one"),
    ):
        CALLS[name](client)
