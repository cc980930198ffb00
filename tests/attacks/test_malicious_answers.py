"""Every field of every answer, as only a malicious learner or replay server sends it: clients say so, and live."""

import contextlib
import itertools
from concurrent import futures

import grpc
import numpy as np
import pytest
from google.protobuf import message_factory

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.relay import RelayClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import DamagedMessageError, RollcastError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationReport
from rollcast.services.joining.join import Relay
from rollcast.services.spaces.codec import environment_spaces_to_proto
from rollcast.services.wire.seal import seal
from rollcast.v1 import history_pb2, learner_pb2, policy_pb2, relay_pb2, replay_pb2, rollout_pb2
from tests.attacks.fields import Sizes, spoilt
from tests.attacks.walker import PLAIN_BY_TYPE
from tests.contract.golden_messages import golden_messages
from tests.integration.learner_fakes import SPACES, offer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZES = Sizes(n_bytes=3000, n_members=300, message_bytes=20_000)
GOLDEN = golden_messages()
REPORT = EvaluationReport(
    actor_id="e", incarnation=1, learner_nonce=1, outcome=ActorFailure(exception_type="E", message="m", traceback="t")
)
OBSERVATION = {"": np.zeros((2, 4), np.float32)}
STATUS = learner_pb2.LearnerStatus.FromString(GOLDEN["learner_status"])
CHUNK = policy_pb2.GetPolicyResponse.FromString(GOLDEN["policy_chunk"]).chunk


def bundles(client):
    link = client.open_bundles(Relay("r", 1))
    link.open_stream("a", 1, lambda _answer: None)
    link.run(lambda _nonce: None)


def responses(client):
    uplink = client.open_rollout_stream("a", 1)
    try:
        list(uplink.responses())
    finally:
        uplink.cancel()


# An honest answer of each RPC, and the call of a client that gets it.
CALLS = {
    "RolloutService.Join": (rollout_pb2.JoinResponse.FromString(GOLDEN["join_response"]), lambda c: c.join(offer())),
    "RolloutService.StreamRollouts": (rollout_pb2.StreamRolloutsResponse(credit_sequence=1), responses),
    "RolloutService.ReportEvaluation": (rollout_pb2.ReportEvaluationResponse(), lambda c: c.report_evaluation(REPORT)),
    "RelayService.StreamBundles": (relay_pb2.StreamBundlesResponse(learner_nonce=1), bundles),
    "PolicyService.GetPolicy": (policy_pb2.GetPolicyResponse(chunk=CHUNK), lambda c: c.get_policy()),
    "PolicyService.SubscribePolicy": (
        policy_pb2.SubscribePolicyResponse(chunk=CHUNK),
        lambda c: next(iter(c.subscribe_policy())),
    ),
    "PolicyService.Act": (policy_pb2.ActResponse(policy_version=1), lambda c: c.act(OBSERVATION)),
    "LearnerService.DescribeLearner": (
        learner_pb2.DescribeLearnerResponse(
            description=learner_pb2.LearnerDescription(substeps=environment_spaces_to_proto(SPACES), n_rollout_steps=3)
        ),
        lambda c: c.describe(),
    ),
    "LearnerService.GetStatus": (learner_pb2.GetStatusResponse(status=STATUS), lambda c: c.status()),
    "LearnerService.WatchStatus": (
        learner_pb2.WatchStatusResponse(status=STATUS),
        lambda c: list(itertools.islice(c.watch_status(), 2)),
    ),
    "LearnerService.ListActors": (
        learner_pb2.ListActorsResponse(actors=[learner_pb2.ActorInfo.FromString(GOLDEN["actor_info"])]),
        lambda c: c.actors(),
    ),
    "LearnerService.Pause": (learner_pb2.PauseResponse(), lambda c: c.pause()),
    "LearnerService.Resume": (learner_pb2.ResumeResponse(), lambda c: c.resume()),
    "LearnerService.SaveCheckpoint": (learner_pb2.SaveCheckpointResponse(path="p"), lambda c: c.save_checkpoint()),
    "LearnerService.Stop": (learner_pb2.StopResponse(), lambda c: c.stop()),
    "HistoryService.WatchHistory": (
        history_pb2.WatchHistoryResponse.FromString(GOLDEN["history"]),
        lambda c: next(c.watch_history()),
    ),
    "ReplayService.GetReplayInfo": (
        replay_pb2.GetReplayInfoResponse(info=replay_pb2.ReplayInfo(substeps=environment_spaces_to_proto(SPACES))),
        lambda c: c.info(),
    ),
    "ReplayService.Sample": (replay_pb2.SampleResponse(parts=1), lambda c: next(c.samples(2, 1))),
    "ReplayService.UpdatePriorities": (
        replay_pb2.UpdatePrioritiesResponse(),
        lambda c: c.update_priorities([1], [1.0]),
    ),
    "ReplayService.Reset": (replay_pb2.ResetResponse(), lambda c: c.reset()),
}
FILES = (history_pb2, learner_pb2, policy_pb2, relay_pb2, replay_pb2, rollout_pb2)
METHODS = {
    f"{service.name}.{method.name}": method
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
    base, call = CALLS[name]
    client_class = {"ReplayService": ReplayClient, "RelayService": RelayClient}.get(name.split(".")[0], LearnerClient)
    with client_class(address) as client:
        for what, message in [("honest", base), *spoilt(lambda: base, Plain(), SIZES)]:
            handler.answers = [message.SerializeToString()]
            if METHODS[name].client_streaming:
                handler.answers.insert(0, base.SerializeToString())
            try:
                with contextlib.suppress(RollcastError, StopIteration):
                    call(client)
            except BaseException as error:
                error.add_note(f"{name}: {what}")
                raise


def test_an_answer_without_the_digest_that_the_first_one_had_is_damaged(malicious):
    handler, address = malicious
    answer = CALLS["RolloutService.StreamRollouts"][0].SerializeToString()
    handler.answers = [seal(answer), answer]
    with (
        LearnerClient(address) as client,
        pytest.raises(DamagedMessageError, match="it has no digest, and the first of its stream had one"),
    ):
        responses(client)
