"""Rollout streams without a client: any bytes, in any order."""

from rollcast.services.client.channel import make_channel
from rollcast.services.wire.error_status import error_from_rpc
from rollcast.v1 import rollout_pb2
from tests.integration.learner_fakes import DEADLINE_S


def raw_stream(address, *messages):
    """Sends bytes that need be no message, and returns the error they end in."""
    with make_channel(address) as channel:
        call = channel.stream_stream(
            "/rollcast.v1.RolloutService/StreamRollouts",
            response_deserializer=rollout_pb2.StreamRolloutsResponse.FromString,
        )(iter(messages), timeout=DEADLINE_S)
        try:
            list(call)
        except Exception as error:  # noqa: BLE001
            return error_from_rpc(error, address)
    return None


def opening(actor_id="a"):
    return rollout_pb2.StreamRolloutsRequest(
        open=rollout_pb2.OpenStream(actor_id=actor_id, incarnation=1)
    ).SerializeToString()
