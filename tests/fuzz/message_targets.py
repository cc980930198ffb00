"""Decoders of what is agreed and told: tensors, spaces, offers, agreements, errors, how a learner stands."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from google.rpc import status_pb2
from gymnasium import spaces

from rollcast.services.errors import RollcastError
from rollcast.services.history.codec import update_to_protos, updates_from_protos
from rollcast.services.history.history import HistoryUpdate
from rollcast.services.joining.activity import ActingState, ActorActivity, ActorFailure
from rollcast.services.joining.activity_codec import activity_from_proto, activity_to_proto
from rollcast.services.joining.evaluation import EvaluationReport, PlayedEpisodes
from rollcast.services.joining.evaluation_codec import evaluation_report_from_proto, evaluation_report_to_proto
from rollcast.services.joining.join_codec import (
    join_agreement_from_proto,
    join_agreement_to_proto,
    join_offer_from_proto,
    join_offer_to_proto,
)
from rollcast.services.spaces import codec as space_codec
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces, space_leaves
from rollcast.services.status.codec import actor_from_proto, actor_to_proto, status_from_proto, status_to_proto
from rollcast.services.status.description_codec import description_from_proto, description_to_proto
from rollcast.services.wire.error_status import STATUS_CODES, error_from_rpc, error_to_status
from rollcast.services.wire.tensors import DTYPES, tensor_from_proto, tensor_to_proto
from rollcast.v1 import history_pb2, inference_pb2, learner_pb2, rollout_pb2, space_pb2, tensor_pb2
from tests.contract.golden_messages import SPACE, golden_messages
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import SMALL_CHANGE_BYTES, Target
from tests.fuzz.protobuf_mutator import message_mutator, stream_mutator
from tests.rollouts import NESTED
from tests.unit.services.inference import test_codec as inference_messages
from tests.unit.services.joining.test_join_codec import AGREEMENT, OFFER
from tests.unit.services.status.test_codec import DESCRIPTION

# The declared limit is 2**23 elements: lowered to these, reaching it costs microseconds.
_MAX_SPACE_ELEMENTS = 1 << 12
LOWERED_SPACES = ((space_codec, "MAX_SPACE_ELEMENTS", _MAX_SPACE_ELEMENTS),)
# Two bounds, which side is bounded, and what gymnasium copies and compares of them, in float64 and complex steps.
_BYTES_PER_ELEMENT = 96
_SMALL = {"0": SubstepSpaces(observation=spaces.MultiBinary(3), action=spaces.MultiDiscrete([2, 3], start=[1, 0]))}
SPACES_BYTES = SMALL_CHANGE_BYTES + _BYTES_PER_ELEMENT * _MAX_SPACE_ELEMENTS


def tensor(folder: Path) -> Target:
    """One tensor, with its bytes."""
    arrays = [np.ones((2, 3), dtype) for dtype in DTYPES.values()]
    return _codec(
        "tensor",
        tensor_pb2.Tensor,
        lambda proto: tensor_from_proto(proto, what="a tensor"),
        tensor_to_proto,
        [tensor_to_proto(array) for array in arrays],
    )


def environment(folder: Path) -> Target:
    """The spaces of an environment, as offers and recordings have them."""
    leaves = (*space_leaves(SPACE).values(), SPACE, spaces.Box(0, 255, (8, 8, 3), np.uint8))
    examples = ({"0": SubstepSpaces(observation=leaf, action=spaces.Discrete(2))} for leaf in leaves)
    seeds = (*(_joined(example) for example in examples), _joined(NESTED))

    def decode(content: bytes) -> EnvironmentSpaces:
        return environment_spaces_from_proto(
            space_pb2.SubstepSpaces.FromString(piece) for piece in split_pieces(content)
        )

    return Target(
        name="spaces",
        decode=decode,
        encode=_joined,
        seeds=seeds,
        mutate=stream_mutator(space_pb2.SubstepSpaces, seeds),
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
    )


def join_offer(folder: Path) -> Target:
    """An actor's offer."""
    return _codec(
        "join offer",
        rollout_pb2.JoinRequest,
        join_offer_from_proto,
        join_offer_to_proto,
        [join_offer_to_proto(replace(OFFER, spaces=_SMALL)), golden_messages()["join_request"]],
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
    )


def join_agreement(folder: Path) -> Target:
    """A learner's answer to an offer."""
    offer = replace(OFFER, actor_id="", n_envs=0, spaces=_SMALL)
    return _codec(
        "join agreement",
        rollout_pb2.JoinResponse,
        lambda proto: join_agreement_from_proto(proto, offer),
        join_agreement_to_proto,
        [
            join_agreement_to_proto(AGREEMENT),
            join_agreement_to_proto(replace(AGREEMENT, spaces=_SMALL)),
            golden_messages()["join_response_of_a_learner"],
        ],
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
    )


def actor_activity(folder: Path) -> Target:
    """An actor's report of its time."""

    def decode(proto: rollout_pb2.ActorActivity) -> ActorActivity:
        activity = activity_from_proto(proto, actor_id="a")
        # one that is ignored stands for nothing
        return activity or ActorActivity(state=ActingState.CONNECTING, seconds=(0.0,) * len(ActingState))

    example = ActorActivity(state=ActingState.ACTING, seconds=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), policy_version=7)
    return _codec("actor activity", rollout_pb2.ActorActivity, decode, activity_to_proto, [activity_to_proto(example)])


def inference(folder: Path) -> Target:
    """A question of an actor to central inference; its network is agreed."""
    seeds = tuple(
        inference_messages.CODEC.to_bytes(inference_messages.question(key)) for key in inference_messages.SEEN
    )
    return Target(
        name="inference",
        decode=inference_messages.CODEC.from_bytes,
        seeds=seeds,
        mutate=message_mutator(inference_pb2.InferRequest, seeds),
    )


def history(folder: Path) -> Target:
    """A message of a run's history."""

    def decode(proto: history_pb2.WatchHistoryResponse) -> HistoryUpdate:
        proto.continues = False
        return next(updates_from_protos([proto]))

    return _codec(
        "history",
        history_pb2.WatchHistoryResponse,
        decode,
        lambda update: next(update_to_protos(update)),
        [golden_messages()["history"]],
        bytes_per_byte=128,
    )


def evaluation_report(folder: Path) -> Target:
    """An evaluator's report."""
    played = PlayedEpisodes(policy_version=3, returns=(1.0, -2.5), lengths=(7, 1), seconds=0.5)
    failure = ActorFailure(exception_type="ValueError", message="m", traceback="t")
    return _codec(
        "evaluation report",
        rollout_pb2.ReportEvaluationRequest,
        evaluation_report_from_proto,
        evaluation_report_to_proto,
        [
            evaluation_report_to_proto(EvaluationReport(actor_id="e", incarnation=1, learner_nonce=2, outcome=outcome))
            for outcome in (played, failure)
        ],
    )


def learner_status(folder: Path) -> Target:
    """A learner's status, with that of its replay buffer."""
    return _codec(
        "status",
        learner_pb2.LearnerStatus,
        status_from_proto,
        status_to_proto,
        [golden_messages()["learner_status"]],
        bytes_per_byte=128,
    )


def learner_description(folder: Path) -> Target:
    """A learner's description."""
    return _codec(
        "description",
        learner_pb2.LearnerDescription,
        description_from_proto,
        description_to_proto,
        [description_to_proto(replace(DESCRIPTION, spaces=_SMALL)), description_to_proto(DESCRIPTION)],
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
    )


def actor_info(folder: Path) -> Target:
    """An actor's status."""
    return _codec(
        "actor info",
        learner_pb2.ActorInfo,
        actor_from_proto,
        actor_to_proto,
        [golden_messages()["actor_info"]],
    )


def error_status(folder: Path) -> Target:
    """The status of a call that failed."""
    seeds = tuple(error_to_status(kind("what is wrong")).SerializeToString() for kind in STATUS_CODES)

    def decode(content: bytes) -> RollcastError:
        return error_from_rpc(_FailedCall(content), "localhost:1")

    return Target(
        name="error status",
        decode=decode,
        seeds=seeds,
        mutate=message_mutator(status_pb2.Status, seeds),
    )


class _FailedCall(grpc.RpcError, grpc.Call):
    """A call as gRPC's client sees it fail, with the trailer that is decoded."""

    def __init__(self, trailer: bytes) -> None:
        self._trailer = trailer

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self) -> str:
        return "details"

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._trailer),)

    def initial_metadata(self) -> Any:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False


def _joined(value: EnvironmentSpaces) -> bytes:
    return join_pieces(proto.SerializeToString() for proto in environment_spaces_to_proto(value))


def _codec(
    name: str,
    kind: type[Message],
    from_proto: Callable[[Any], Any],
    to_proto: Callable[[Any], Message],
    examples: list[Any],
    **fields: Any,
) -> Target:
    """A pair of functions between messages and values, as most codecs are."""
    seeds = tuple(example if isinstance(example, bytes) else example.SerializeToString() for example in examples)
    return Target(
        name=name,
        decode=lambda content: from_proto(kind.FromString(content)),
        encode=lambda value: to_proto(value).SerializeToString(deterministic=True),
        seeds=seeds,
        mutate=message_mutator(kind, seeds),
        **fields,
    )
