"""Finds acknowledged rollouts of a killed learner in the log, and returns them like new rollouts."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.files import KnownSegment
from rollcast.learner.durable.reading import Flaw, SegmentReader
from rollcast.learner.durable.records import RecordHead
from rollcast.learner.durable.segments import SegmentName, segment_names
from rollcast.learner.queueing.queue import RolloutSlice, SliceName
from rollcast.services.errors import ConfigurationError, MismatchError, RecordingError, RollcastError
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import check_spaces_match

logger = logging.getLogger(__name__)

_REMEDY: Final = (
    "the disk failed, or another program wrote there: replace the disk; training continues without these rollouts"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A rollout in the log that the checkpoint does not cover completely.

    Attributes:
        segment: The segment that contains the rollout.
        record: The rollout's record in the segment.
        spans: The trajectories that the checkpoint does not cover.
    """

    segment: SegmentName
    record: RecordHead
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The content of a folder of segments.

    Attributes:
        segments: All segments, oldest first.
        found: The rollouts that the checkpoint does not cover, oldest first.
        next_number: The number of the next rollout.
        policy_version: The highest policy version in `found`; 0 if it is empty.
    """

    segments: tuple[KnownSegment, ...]
    found: tuple[Found, ...]
    next_number: int
    policy_version: int

    def actors(self, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Adds the actors of `found` to the actors in the checkpoint.

        Args:
            known: Actors in the checkpoint, in the form of `ActorRegistry.state`.

        Returns:
            The actors of the checkpoint and those that joined later. Each has the sequence number of its last rollout
            in the log, so that it does not resend rollouts in the log.
        """
        actors = dict(known)
        for entry in (found.record.entry for found in self.found):
            before = actors.get(entry.actor_id)
            if before is None or before["incarnation"] <= entry.incarnation:
                is_same = before is not None and before["incarnation"] == entry.incarnation
                taken = before["taken_sequence"] if is_same and before is not None else 0
                actors[entry.actor_id] = {
                    "slot": entry.slot,
                    "incarnation": entry.incarnation,
                    "process_nonce": entry.process_nonce,
                    "taken_sequence": max(taken, entry.sequence),
                    "replaced_nonces": before["replaced_nonces"] if is_same and before else entry.replaced_nonces,
                }
        return actors


def take_inventory(folder: Path, header: RecordingHeader, coverage: Coverage) -> Inventory:
    """Reads heads and tails of all records, and the rollouts of the last segment, whose end may be torn.

    Damage is logged as an error with file, position and kind. Records after the damage are still found.

    Args:
        folder: The folder of the segments.
        header: The required description of their rollouts.
        coverage: The coverage of the resumed checkpoint.

    Raises:
        ConfigurationError: The rollouts in the segments have another description.
    """
    names = segment_names(folder)
    segments: list[KnownSegment] = []
    found: list[Found] = []
    for name in names:
        with SegmentReader(folder, name) as reader:
            _check_header(reader, header)
            segment = KnownSegment(name=name, n_bytes=reader.n_bytes)
            segments.append(segment)
            for record in reader.scan(verify=name is names[-1]):
                if isinstance(record, Flaw):
                    _tell(reader.path, record)
                    continue
                segment.add(record.entry.number)
                spans = coverage.open_of(record.entry.number, record.entry.n_trajectories)
                if spans:
                    found.append(Found(name, record, spans))
    numbers = [segment for segment in segments if segment.first <= segment.last]
    first = min((segment.first for segment in numbers), default=coverage.position)
    if first > coverage.position:
        logger.error(
            "the write-ahead log %s begins with rollout %d, and the checkpoint ends with %d: the %d acknowledged "
            "rollouts between them cannot be recovered; expected the later checkpoint that covers them, but it is "
            "damaged; the log had removed these rollouts, because it took more than half of --durable-max-bytes",
            folder,
            first,
            coverage.position,
            first - coverage.position,
        )
    return Inventory(
        segments=tuple(segments),
        found=tuple(found),
        next_number=max([coverage.position, *(segment.last + 1 for segment in numbers)]),
        policy_version=max((each.record.entry.policy_version for each in found), default=0),
    )


class RecoveredRollouts:
    """Returns the found rollouts, and keeps only one at a time in memory. For one thread.

    Args:
        folder: The folder of the segments.
        header: Describes the rollouts.
        found: The rollouts to return, oldest first.
        open_rollouts: This object receives the rollouts as open rollouts. Unreadable rollouts are removed from it.

    Attributes:
        n_lost: The number of unreadable rollouts.
    """

    def __init__(
        self, folder: Path, header: RecordingHeader, found: Sequence[Found], open_rollouts: OpenRollouts
    ) -> None:
        self.n_lost = 0
        self._folder = folder
        self._header = header
        self._found = deque(found)
        self._open_rollouts = open_rollouts
        self._slices: deque[RolloutSlice] = deque()
        # The last returned sequence, by actor and incarnation: a rollout in a failed segment may be in the next one,
        # too.
        self._last: dict[tuple[str, int], int] = {}
        for each in found:
            entry = each.record.entry
            name = SliceName(entry.actor_id, entry.incarnation, entry.sequence, 0, entry.n_trajectories)
            open_rollouts.add(entry.number, name, entry.n_trajectories, each.spans)

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """Returns the next trajectories; None after the last."""
        while not self._slices:
            if not self._found:
                return None
            self._read(self._found.popleft())
        piece, rest = self._slices.popleft().cut(max_trajectories)
        if rest is not None:
            self._slices.appendleft(rest)
        return piece

    def _read(self, found: Found) -> None:
        entry = found.record.entry
        process = entry.actor_id, entry.incarnation
        if entry.sequence <= self._last.get(process, 0):
            return
        try:
            rollout = self._recover(found)
        except (OSError, RollcastError) as error:
            self.n_lost += 1
            self._open_rollouts.discard(SliceName(*process, entry.sequence, 0, entry.n_trajectories))
            logger.error(  # noqa: TRY400  # the message says it all
                "%s, byte %d: rollout %d of actor %r, incarnation %d, cannot be recovered: %s; expected %d bytes; %s",
                found.segment.path(self._folder),
                found.record.start,
                entry.sequence,
                *process,
                error.strerror if isinstance(error, OSError) else error,
                found.record.end - found.record.start,
                _REMEDY,
            )
            return
        self._slices.extend(RolloutSlice(rollout, start, stop) for start, stop in found.spans)
        self._last[process] = entry.sequence

    def _recover(self, found: Found) -> Rollout:
        """Reads a rollout.

        Raises:
            OSError: The disk has failed.
            RollcastError: The record is damaged, or contradicts its entry or the checkpoint.
        """
        entry = found.record.entry
        with SegmentReader(self._folder, found.segment) as reader:
            payload = reader.payload(found.record)
        if payload is None:
            raise RecordingError("it does not match its digest")
        rollout = RolloutAssembler(
            self._header.of_envs(entry.n_envs),
            actor_id=entry.actor_id,
            incarnation=entry.incarnation,
        ).assemble(*payload)
        written = entry.sequence, entry.n_trajectories, entry.policy_version
        read = rollout.sequence, rollout.n_envs, rollout.policy_version
        if read != written:
            raise RecordingError(
                f"its sequence, trajectories and policy version are {read}, but {written} in its entry"
            )
        if any(stop > rollout.n_envs for _, stop in found.spans):
            raise RecordingError(
                f"it has {rollout.n_envs} trajectories, and the checkpoint lists {list(found.spans)} as open"
            )
        return rollout


def _check_header(reader: SegmentReader, header: RecordingHeader) -> None:
    try:
        written = reader.header()
    except RollcastError:
        return  # damaged: `scan` reports it, and the rollouts are checked one by one
    try:
        check_spaces_match(header.spaces, written.spaces, expected_side="this run", offered_side=str(reader.path))
    except MismatchError as error:
        raise ConfigurationError(f"--durable: {error}") from error
    if written.n_rollout_steps != header.n_rollout_steps:
        raise ConfigurationError(
            f"--durable: {reader.path} has rollouts of {written.n_rollout_steps} steps; expected "
            f"{header.n_rollout_steps} as in this run; it belongs to another run; move it away"
        )


def _tell(path: Path, flaw: Flaw) -> None:
    if flaw.is_torn:
        logger.info("%s, byte %d: %s; it was not acknowledged, so it is dropped", path, flaw.start, flaw.what)
        return
    logger.error(
        "%s, bytes %d to %d: %s, and cannot be recovered; expected complete records; %s",
        path,
        flaw.start,
        flaw.stop,
        flaw.what,
        _REMEDY,
    )
