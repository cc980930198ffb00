"""Calls as anybody may make them, and what a limit answers to them."""

import grpc
from google.rpc import error_details_pb2, status_pb2

from rollcast.services.client.channel import make_channel
from rollcast.v1 import rollout_pb2

INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
JOIN, STREAM = "/rollcast.v1.RolloutService/Join", "/rollcast.v1.RolloutService/StreamRollouts"
REPORT = "/rollcast.v1.RolloutService/ReportEvaluation"
WATCH, STATUS = "/rollcast.v1.LearnerService/WatchStatus", "/rollcast.v1.LearnerService/GetStatus"
ACT, SAMPLE = "/rollcast.v1.PolicyService/Act", "/rollcast.v1.ReplayService/Sample"
OPENING = rollout_pb2.StreamRolloutsRequest(open=rollout_pb2.OpenStream(actor_id="a", incarnation=1))


def answer_to(address, method, *requests):
    """The status code of a call, and the limit that its detail names; every shape looks the same from outside."""
    with make_channel(address) as channel:
        call = channel.stream_stream(method)(iter([request.SerializeToString() for request in requests]))
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code(), limit_in(call.trailing_metadata())
        return grpc.StatusCode.OK, ""


def limit_in(trailer):
    for key, value in trailer:
        if key == "grpc-status-details-bin":
            (detail,) = status_pb2.Status.FromString(value).details
            info = error_details_pb2.ErrorInfo()
            assert detail.Unpack(info)
            return info.metadata["limit"]
    return ""


def throttled(client):
    return {(met.who, met.limit) for met in client.status().throttled}
