"""Encodes the history of a run as protobuf messages of bounded size, and decodes it."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message

from rollcast.services.errors import InvalidInputError
from rollcast.services.history.history import (
    EvaluationPoint,
    EventSeverity,
    HistoryEvent,
    HistoryPoint,
    HistoryUpdate,
    Lane,
    LearnerActivity,
    MetricCurve,
    PolicyDelays,
    RunFacts,
)
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.codec import actor_from_proto, actor_to_proto, status_from_proto, status_to_proto
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import history_pb2

# A message ends with the part of the update that reaches this size. A part has a few kilobytes at most.
_MESSAGE_BYTES: Final = 1 << 20

_point_fields: Final = same_fields(HistoryPoint)
_evaluation_fields: Final = same_fields(EvaluationPoint)
_curve_fields: Final = same_fields(MetricCurve)
_run_fields: Final = same_fields(RunFacts)
_event_fields: Final = same_fields(HistoryEvent, but=("severity",))
_delay_fields: Final = same_fields(PolicyDelays, but=("trajectories_by_lag",))


def update_to_protos(update: HistoryUpdate) -> Iterator[history_pb2.WatchHistoryResponse]:
    """Encodes an update.

    Args:
        update: The update.

    Yields:
        The update's messages; all except the last are marked as continued.
    """
    proto = history_pb2.WatchHistoryResponse(
        now_s=update.now_s,
        run=None if update.run is None else history_pb2.RunFacts(**_run_fields(update.run)),
        status=status_to_proto(update.status),
        delays=history_pb2.PolicyDelays(
            trajectories_by_lag=update.delays.trajectories_by_lag, **_delay_fields(update.delays)
        ),
    )
    n_bytes = 0
    for field, part in _parts(update):
        if n_bytes > _MESSAGE_BYTES:
            proto.continues = True
            yield proto
            proto, n_bytes = history_pb2.WatchHistoryResponse(now_s=update.now_s), 0
        getattr(proto, field).append(part)
        n_bytes += part.ByteSize()
    yield proto


def _parts(update: HistoryUpdate) -> Iterator[tuple[str, Message]]:
    """Yields the repeated parts of an update with the names of their fields, the small parts first."""
    for point in update.points:
        yield "points", history_pb2.HistoryPoint(**_point_fields(point))
    for evaluation in update.evaluations:
        yield "evaluations", history_pb2.EvaluationPoint(**_evaluation_fields(evaluation))
    for curve in update.curves:
        yield "curves", history_pb2.MetricCurve(**_curve_fields(curve))
    for actor in update.actors:
        yield "actors", actor_to_proto(actor)
    for event in update.events:
        yield "events", _event_to_proto(event)
    for lane in update.lanes:
        shares = lane.shares.tobytes()
        yield (
            "lanes",
            history_pb2.Lane(actor_id=lane.actor_id, interval_s=lane.interval_s, end_s=lane.end_s, shares=shares),
        )


def updates_from_protos(protos: Iterable[history_pb2.WatchHistoryResponse]) -> Iterator[HistoryUpdate]:
    """Decodes the messages of a stream.

    Args:
        protos: The messages, in order of arrival.

    Yields:
        The updates, each after its last message.

    Raises:
        InvalidInputError: A message does not fit the contract.
    """
    waiting: list[history_pb2.WatchHistoryResponse] = []
    for proto in protos:
        waiting.append(proto)
        if not proto.continues:
            yield _update_from(waiting)
            waiting = []


def _update_from(protos: list[history_pb2.WatchHistoryResponse]) -> HistoryUpdate:
    first = protos[0]

    def all_of(field: str) -> Iterator[Any]:
        return itertools.chain.from_iterable(getattr(proto, field) for proto in protos)

    return HistoryUpdate(
        now_s=first.now_s,
        run=RunFacts(**_with_none(first.run, _run_fields(first.run))) if first.HasField("run") else None,
        status=status_from_proto(first.status),
        actors=tuple(map(actor_from_proto, all_of("actors"))),
        points=tuple(HistoryPoint(**_with_none(point, _point_fields(point))) for point in all_of("points")),
        evaluations=tuple(EvaluationPoint(**_evaluation_fields(point)) for point in all_of("evaluations")),
        lanes=tuple(map(_lane_from_proto, all_of("lanes"))),
        events=tuple(map(_event_from_proto, all_of("events"))),
        delays=PolicyDelays(
            trajectories_by_lag=tuple(first.delays.trajectories_by_lag),
            **_with_none(first.delays, _delay_fields(first.delays)),
        ),
        curves=tuple(map(_curve_from_proto, all_of("curves"))),
    )


def _with_none(proto: Message, fields: dict[str, Any]) -> dict[str, Any]:
    """Replaces the values of absent optional fields with None."""
    descriptors = proto.DESCRIPTOR.fields_by_name
    return {
        name: None if descriptors[name].has_presence and not proto.HasField(name) else value
        for name, value in fields.items()
    }


def _event_to_proto(event: HistoryEvent) -> history_pb2.HistoryEvent:
    proto = history_pb2.HistoryEvent(**_event_fields(event))
    proto.severity = event.severity.value  # type: ignore[assignment]  # the stub's enum class exists for checkers only
    return proto


def _event_from_proto(proto: history_pb2.HistoryEvent) -> HistoryEvent:
    try:
        severity = EventSeverity(proto.severity)
    except ValueError:
        # A severity of a later version: show the event as one that may need attention.
        severity = EventSeverity.WARNING
    return HistoryEvent(severity=severity, **_event_fields(proto))


def _curve_from_proto(proto: history_pb2.MetricCurve) -> MetricCurve:
    if not len(proto.time_s) == len(proto.env_steps) == len(proto.values):
        raise InvalidInputError(
            f"the curve of {proto.metric!r} has {len(proto.time_s)} times, {len(proto.env_steps)} steps and "
            f"{len(proto.values)} values; expected the same number of each; use the same version of rollcast here and "
            "in the learner"
        )
    return MetricCurve(
        metric=proto.metric,
        time_s=tuple(proto.time_s),
        env_steps=tuple(proto.env_steps),
        values=tuple(proto.values),
    )


def _lane_from_proto(proto: history_pb2.Lane) -> Lane:
    n_states = len(ActingState if proto.actor_id else LearnerActivity)
    if len(proto.shares) % n_states:
        whose = f"actor {proto.actor_id!r}" if proto.actor_id else "the learner"
        raise InvalidInputError(
            f"the lane of {whose} has {len(proto.shares)} shares; expected {n_states} for each interval; use the same "
            "version of rollcast here and in the learner"
        )
    shares = np.frombuffer(proto.shares, np.uint8).reshape(-1, n_states)
    return Lane(actor_id=proto.actor_id, interval_s=proto.interval_s, end_s=proto.end_s, shares=shares)
