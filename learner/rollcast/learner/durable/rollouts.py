"""Opens, writes, recovers and trims the log of acknowledged rollouts, for the learner's actors."""

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rollcast.learner.durable.coverage import Coverage
from rollcast.learner.durable.log import RolloutLog
from rollcast.learner.durable.records import LogEntry, Payload
from rollcast.learner.durable.recovery import Inventory, RecoveredRollouts, take_inventory
from rollcast.learner.queueing.queue import RolloutSlice, SliceName
from rollcast.learner.serving.records import ActorRecord
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout

logger = logging.getLogger(__name__)


class DurableRollouts:
    """A log that keeps every acknowledged rollout on the disk until a checkpoint covers it.

        durable.open(header, state)      # before serving: finds rollouts that a killed learner had not used
        durable.take(n)                  # returns them, before new ones
        durable.write(...)               # each rollout, before it is acknowledged
        durable.covered(pieces)          # when training has used them
        durable.state()                  # goes into the checkpoint
        durable.saved(state)             # when the checkpoint is on the disk: removes covered rollouts

    The trainer's thread calls `open`, `take` and `close`; any thread may call the other methods.

    Args:
        folder: The folder of the log; created if missing.
        max_bytes: The largest size of the log on the disk, in bytes.
        ask_for_checkpoint: Makes a checkpoint and returns when it is written; called in a separate thread when the log
            takes half of `max_bytes`.
    """

    def __init__(self, folder: Path, *, max_bytes: int, ask_for_checkpoint: Callable[[], object]) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._ask_for_checkpoint = ask_for_checkpoint
        self._log: RolloutLog | None = None
        self._recovered: RecoveredRollouts | None = None
        self._n_found = 0

    def open(self, header: RecordingHeader, state: Mapping[str, Any] | None) -> Inventory:
        """Reads the log, and opens it for writing.

        Args:
            header: Describes the rollouts.
            state: The result of `state` in the resumed checkpoint; None: no checkpoint.

        Returns:
            The content of the log; `take` returns the found rollouts.

        Raises:
            ConfigurationError: The log cannot be read, or belongs to another run.
        """
        coverage = Coverage.from_json(state)
        try:
            self._folder.mkdir(exist_ok=True)
            inventory = take_inventory(self._folder, header, coverage)
        except OSError as error:
            raise ConfigurationError(
                f"--durable: {self._folder} cannot be read: {error.strerror}; expected a folder for the write-ahead "
                "log; check the disk, or run without --durable"
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
        self._n_found = len(inventory.found)
        if inventory.found:
            logger.info(
                "%d acknowledged rollouts are not in the checkpoint; training uses them first: %s",
                self._n_found,
                self._folder,
            )
            self._recovered = RecoveredRollouts(self._folder, header, inventory.found, self._log.open)
        return inventory

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """Returns the next trajectories from the log; None after the last."""
        if self._recovered is None:
            return None
        piece = self._recovered.take(max_trajectories)
        if piece is None:
            logger.info(
                "training has all %d rollouts of the write-ahead log, except for %d damaged ones",
                self._n_found,
                self._recovered.n_lost,
            )
            self._recovered = None
        return piece

    def write(
        self, rollout: Rollout, record: ActorRecord, encoder: RolloutEncoder, *, is_active: Callable[[], bool]
    ) -> bool:
        """Writes a rollout, and waits until it is on the disk.

        Args:
            rollout: The rollout.
            record: Its actor.
            encoder: The encoder of its stream.
            is_active: Called at least once a second during a wait; the wait ends when it returns False.

        Returns:
            True if the rollout is on the disk. False if `is_active` returned False, or the log was closed: then do not
            acknowledge the rollout.

        Raises:
            NotReadyError: The disk is full, or has failed.
        """
        assert self._log is not None, "open() comes first"
        payload = Payload.of(*encoder.head_and_arrays(rollout))
        return self._log.append(partial(_entry, rollout, record), payload, is_active=is_active)

    def discard(self, rollout: Rollout) -> None:
        """Removes a written rollout that the learner does not accept. Its actor resends the rollout."""
        assert self._log is not None, "open() comes first"
        self._log.open.discard(RolloutSlice(rollout, 0, rollout.n_envs).name)

    def covered(self, pieces: Iterable[SliceName]) -> None:
        """Records that training has used these trajectories, or will never use them."""
        assert self._log is not None, "open() comes first"
        for piece in pieces:
            self._log.open.cover(piece)

    def state(self) -> dict[str, Any] | None:
        """Returns the log's coverage by a checkpoint taken now, as JSON values; None before `open`."""
        return None if self._log is None else self._log.open.coverage().to_json()

    def saved(self, state: Mapping[str, Any]) -> None:
        """Removes the rollouts that a checkpoint with that state covers. Call it once the checkpoint is on the disk."""
        if self._log is not None:
            self._log.covered(Coverage.from_json(state))

    def problem(self) -> str:
        """Returns the reason why the learner acknowledges no rollouts; empty if it acknowledges them."""
        return "" if self._log is None else self._log.problem()

    def metrics(self) -> dict[str, float]:
        """Returns the log's metrics by name; times and counts are since the last call."""
        return {} if self._log is None else self._log.metrics()

    def close(self) -> None:
        """Finishes writing, and refuses further rollouts."""
        if self._log is not None:
            self._log.close()


def refuse_leftovers(folder: Path, header: RecordingHeader, state: Mapping[str, Any] | None) -> None:
    """Removes the log of a run that continues without --durable.

    Args:
        folder: The folder of the log; it need not exist.
        header: Describes the rollouts.
        state: See `DurableRollouts.open`.

    Raises:
        ConfigurationError: The log has rollouts that the checkpoint does not cover, or cannot be read.
    """
    if not any(folder.glob("*.log")):
        return
    try:
        inventory = take_inventory(folder, header, Coverage.from_json(state))
    except OSError as error:
        raise ConfigurationError(
            f"--no-durable: the log {folder} cannot be read: {error.strerror}; expected a log without rollouts that "
            "the checkpoint lacks; check the disk, or remove the folder to discard its rollouts"
        ) from error
    if inventory.found:
        raise ConfigurationError(
            f"--no-durable: the log {folder} has {len(inventory.found)} acknowledged rollouts that no checkpoint has; "
            "expected none; resume with --durable, or remove the folder to discard them"
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
