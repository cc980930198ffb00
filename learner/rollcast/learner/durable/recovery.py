"""What a learner that was killed had acknowledged: found in the log, and handed out as if it had just come."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.files import KnownSegment
from rollcast.learner.durable.reading import Flaw, SegmentReader
from rollcast.learner.durable.records import LogEntry, RecordHead
from rollcast.learner.durable.segments import SegmentName, segment_names
from rollcast.learner.ingest.queue import RolloutSlice, SliceName
from rollcast.services.errors import ConfigurationError, MismatchError, RollcastError
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import check_spaces_match

logger = logging.getLogger(__name__)

_REMEDY: Final = "the disk has failed, or something else has written there: replace it; training goes on without them"


@dataclass(frozen=True, slots=True)
class Found:
    """A rollout in the log that the checkpoint has not whole.

    Attributes:
        segment: Where it is.
        record: Where in there.
        spans: What of its trajectories the checkpoint has not.
    """

    segment: SegmentName
    record: RecordHead
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What is in a folder of segments.

    Attributes:
        segments: All of them, oldest first.
        found: What the checkpoint has not, oldest first.
        next_number: Of the rollout that comes next.
        policy_version: The highest in `found`; 0: there is nothing.
    """

    segments: tuple[KnownSegment, ...]
    found: tuple[Found, ...]
    next_number: int
    policy_version: int

    def actors(self, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """What is known of every actor: by the checkpoint, as `ActorRegistry.state` has it, and by `found`.

        Args:
            known: By the checkpoint.

        Returns:
            The same, with the actors that joined later, and up to where nobody's rollouts are wanted again.
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
    """Reads what the log has, without reading the rollouts; but those of the last segment, whose end may be torn.

    Damage is an error in the log of this process, with file, offset and what was there; what follows it is found.

    Args:
        folder: Where the segments are.
        header: What their rollouts must look like.
        coverage: What the checkpoint has that is resumed.

    Returns:
        The inventory.

    Raises:
        ConfigurationError: The segments are of rollouts that look otherwise.
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
            "rollouts between them cannot be recovered; expected the checkpoint that had them; it is damaged, and what "
            "it had was removed from the log, which was above half of --durable-max-bytes",
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


@dataclass(slots=True)
class RecoveredRollouts:
    """Hands out what was found, from the disk, one rollout at a time in memory. Used by one thread.

    Args:
        folder: Where the segments are.
        header: What the rollouts look like.
        found: What to hand out, oldest first.
        open_rollouts: Knows them as open; told of those that cannot be read.
    """

    folder: Path
    header: RecordingHeader
    found: deque[Found]
    open_rollouts: OpenRollouts
    n_lost: int = 0
    _rollout: Rollout | None = None
    _spans: deque[tuple[int, int]] = field(default_factory=deque)
    # The last that was handed out, by actor and incarnation: a segment that failed may have what is again in the next.
    _last: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """The next trajectories; None: there are no more."""
        while not self._spans:
            if not self.found:
                return None
            self._read(self.found.popleft())
        assert self._rollout is not None, "it has spans"
        start, stop = self._spans.popleft()
        if stop - start > max_trajectories:
            self._spans.appendleft((start + max_trajectories, stop))
            stop = start + max_trajectories
        piece = RolloutSlice(self._rollout, start, stop)
        if not self._spans:
            self._rollout = None
        return piece

    def _read(self, found: Found) -> None:
        entry = found.record.entry
        process = entry.actor_id, entry.incarnation
        if entry.sequence <= self._last.get(process, 0):
            return
        problem = ""
        try:
            with SegmentReader(self.folder, found.segment) as reader:
                payload = reader.payload(found.record)
            if payload is None:
                problem = "it is not as it was written"
            else:
                assembler = RolloutAssembler(
                    self.header.spaces,
                    self.header.n_rollout_steps,
                    entry.n_envs,
                    actor_id=entry.actor_id,
                    incarnation=entry.incarnation,
                )
                rollout = assembler.assemble(*payload)
                problem = _contradiction(rollout, found)
            if not problem:
                self._rollout = rollout
                self._spans = deque(found.spans)
                self._last[process] = entry.sequence
        except OSError as error:
            problem = str(error.strerror)
        except RollcastError as error:
            problem = str(error)
        if problem:
            self.n_lost += 1
            self.open_rollouts.discard(SliceName(*process, entry.sequence, 0, entry.n_trajectories))
            logger.error(
                "%s, byte %d: rollout %d of actor %r, incarnation %d, cannot be recovered: %s; expected %d bytes; %s",
                found.segment.path(self.folder),
                found.record.start,
                entry.sequence,
                *process,
                problem,
                found.record.end - found.record.start,
                _REMEDY,
            )


def _contradiction(rollout: Rollout, found: Found) -> str:
    """What a rollout has that its entry, or the checkpoint, says otherwise; empty: nothing."""
    entry = found.record.entry
    written = entry.sequence, entry.n_trajectories, entry.policy_version
    read = rollout.sequence, rollout.n_envs, rollout.policy_version
    if read != written:
        return f"its sequence, trajectories and policy version are {read}, and {written} in its entry"
    if any(stop > rollout.n_envs for _, stop in found.spans):
        return f"it has {rollout.n_envs} trajectories, and the checkpoint says that {list(found.spans)} are open"
    return ""


def note_open(found: Sequence[Found], open_rollouts: OpenRollouts) -> None:
    """Has what was found counted as open."""
    for each in found:
        entry: LogEntry = each.record.entry
        name = SliceName(entry.actor_id, entry.incarnation, entry.sequence, 0, entry.n_trajectories)
        open_rollouts.add(entry.number, name, entry.n_trajectories, each.spans)


def _check_header(reader: SegmentReader, header: RecordingHeader) -> None:
    try:
        written = reader.header()
    except RollcastError:
        return  # damaged: `scan` says so, and the rollouts are checked one by one
    try:
        check_spaces_match(header.spaces, written.spaces, expected_side="this run", offered_side=str(reader.path))
    except MismatchError as error:
        raise ConfigurationError(f"--durable: {error}") from error
    if written.n_rollout_steps != header.n_rollout_steps:
        raise ConfigurationError(
            f"--durable: {reader.path} has rollouts of {written.n_rollout_steps} steps; expected "
            f"{header.n_rollout_steps}, as of this run; it is another run's: move it away"
        )


def _tell(path: Path, flaw: Flaw) -> None:
    if flaw.is_torn:
        logger.info("%s, byte %d: %s; it was not acknowledged, and is dropped", path, flaw.start, flaw.what)
        return
    logger.error(
        "%s, bytes %d to %d: %s, and cannot be recovered; expected whole records; %s",
        path,
        flaw.start,
        flaw.stop,
        flaw.what,
        _REMEDY,
    )
