"""Durable rollouts, as the learner's actors see them: a log that is opened, written, recovered from, and cut."""

import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rollcast.learner.durable.coverage import Coverage
from rollcast.learner.durable.log import RolloutLog
from rollcast.learner.durable.records import LogEntry, Payload
from rollcast.learner.durable.recovery import Inventory, RecoveredRollouts, note_open, take_inventory
from rollcast.learner.ingest.queue import RolloutSlice, SliceName
from rollcast.learner.ingest.records import ActorRecord
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout

logger = logging.getLogger(__name__)


class DurableRollouts:
    """Every acknowledged rollout is in a log on the disk until a checkpoint has it.

        durable.open(header, state)      # before anybody is served: what a killed learner had not learnt from is found
        durable.take(n)                  # and handed out, before what comes
        durable.write(...)               # each rollout, before it is acknowledged
        durable.covered(pieces)          # when training has had them
        durable.state()                  # goes into the checkpoint
        durable.saved(state)             # when that is on the disk: what it has is removed

    `open`, `take` and `close` are the trainer's; the others may be called from any thread.

    Args:
        folder: Where the log is; made if it does not exist.
        max_bytes: What it may take on the disk.
        ask_for_checkpoint: Makes a checkpoint and returns when it is written; called in a thread of its own when the
            log takes half of that.
    """

    def __init__(self, folder: Path, *, max_bytes: int, ask_for_checkpoint: Callable[[], object]) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._ask_for_checkpoint = ask_for_checkpoint
        self._log: RolloutLog | None = None
        self._recovered: RecoveredRollouts | None = None
        self._n_found = 0

    def open(self, header: RecordingHeader, state: Mapping[str, Any] | None) -> Inventory:
        """Finds what is in the log, and begins to write.

        Args:
            header: What rollouts look like.
            state: What `state` said when the checkpoint was taken that is resumed; None: there is none.

        Returns:
            What was found, all of which `take` hands out.

        Raises:
            ConfigurationError: The log cannot be read, or is another run's.
        """
        coverage = Coverage.nothing() if state is None else Coverage.from_json(state)
        try:
            self._folder.mkdir(exist_ok=True)
            inventory = take_inventory(self._folder, header, coverage)
        except OSError as error:
            raise ConfigurationError(
                f"--durable: {self._folder} cannot be read: {error.strerror}; expected a folder for the write-ahead "
                "log; look at the disk, or do without --durable"
            ) from error
        self._log = RolloutLog(
            self._folder,
            header,
            max_bytes=self._max_bytes,
            next_number=inventory.next_number,
            segments=inventory.segments,
            ask_for_checkpoint=self._ask_for_checkpoint,
        )
        if state is not None:
            self._log.covered(coverage)
        note_open(inventory.found, self._log.open)
        self._n_found = len(inventory.found)
        if inventory.found:
            logger.info(
                "%d rollouts that were acknowledged are not in the checkpoint; they are learnt from first: %s",
                self._n_found,
                self._folder,
            )
            self._recovered = RecoveredRollouts(self._folder, header, deque(inventory.found), self._log.open)
        return inventory

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """The next trajectories that were found; None: all of them were handed out."""
        if self._recovered is None:
            return None
        piece = self._recovered.take(max_trajectories)
        if piece is None:
            logger.info(
                "all rollouts of the write-ahead log were handed out: %d, less %d that were damaged",
                self._n_found,
                self._recovered.n_lost,
            )
            self._recovered = None
        return piece

    def write(
        self, rollout: Rollout, record: ActorRecord, encoder: RolloutEncoder, *, is_active: Callable[[], bool]
    ) -> bool:
        """Returns True when a rollout is on the disk.

        Args:
            rollout: The rollout.
            record: Its actor.
            encoder: Of its stream.
            is_active: Looked at now and then while waiting; False gives up.

        Returns:
            False if `is_active` became False, or the log was closed: it is not to be acknowledged.

        Raises:
            NotReadyError: The disk is full, or has failed.
        """
        assert self._log is not None, "open() comes first"
        payload = Payload.of(*encoder.pieces(rollout))
        return self._log.append(partial(_entry, rollout, record), payload, is_active=is_active)

    def discard(self, rollout: Rollout) -> None:
        """A rollout was written, and is not accepted after all: it is not acknowledged, and comes again."""
        assert self._log is not None, "open() comes first"
        self._log.open.discard(RolloutSlice(rollout, 0, rollout.n_envs).name)

    def covered(self, pieces: Iterable[SliceName]) -> None:
        """Training has had these trajectories, or will never want them."""
        assert self._log is not None, "open() comes first"
        for piece in pieces:
            self._log.open.cover(piece)

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint that is taken now has of the log, as JSON has it; None before `open`."""
        return None if self._log is None else self._log.open.coverage().to_json()

    def saved(self, state: Mapping[str, Any]) -> None:
        """A checkpoint with that state is on the disk."""
        if self._log is not None:
            self._log.covered(Coverage.from_json(state))

    def problem(self) -> str:
        """What keeps rollouts from being acknowledged; empty: nothing does."""
        return "" if self._log is None else self._log.problem()

    def metrics(self) -> dict[str, float]:
        """What there is to write about the log, by name; times since the last call."""
        return {} if self._log is None else self._log.metrics()

    def close(self) -> None:
        """Writes what has come, and takes no more."""
        if self._log is not None:
            self._log.close()


def refuse_leftovers(folder: Path, header: RecordingHeader, state: Mapping[str, Any] | None) -> None:
    """Removes a log that training goes on without.

    Args:
        folder: Where it is, if there is one.
        header: What rollouts look like.
        state: As of `DurableRollouts.open`.

    Raises:
        ConfigurationError: It has rollouts that the checkpoint has not, or cannot be read.
    """
    if not any(folder.glob("*.log")):
        return
    try:
        inventory = take_inventory(folder, header, Coverage.nothing() if state is None else Coverage.from_json(state))
    except OSError as error:
        raise ConfigurationError(
            f"--no-durable: the log {folder} cannot be read: {error.strerror}; expected one of which the "
            "checkpoint has everything; look at the disk, or remove the folder to give up what is in it"
        ) from error
    if inventory.found:
        raise ConfigurationError(
            f"--no-durable: the log {folder} has {len(inventory.found)} acknowledged rollouts that no checkpoint has; "
            "expected none; resume with --durable, or remove the folder to give them up"
        )
    shutil.rmtree(folder)


def _entry(rollout: Rollout, record: ActorRecord, number: int) -> LogEntry:
    return LogEntry(
        number=number,
        actor_id=rollout.actor_id,
        slot=record.slot,
        incarnation=rollout.incarnation,
        process_nonce=record.process_nonce,
        replaced_nonces=record.replaced_nonces,
        n_envs=record.offer.n_envs,
        sequence=rollout.sequence,
        n_trajectories=rollout.n_envs,
        policy_version=rollout.policy_version,
    )
