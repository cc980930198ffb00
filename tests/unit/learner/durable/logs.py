"""Logs for tests: rollouts that are written as a stream writes them, and what is found again."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.log import RolloutLog
from rollcast.learner.durable.records import LogEntry, Payload
from rollcast.learner.durable.recovery import Inventory, RecoveredRollouts, take_inventory
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout
from tests.rollouts import CARTPOLE_LIKE, always, make_rollout

HEADER = RecordingHeader(spaces=CARTPOLE_LIKE, n_rollout_steps=3, n_envs=2)
NOTHING = Coverage()


def entry_of(rollout: Rollout) -> Callable[[int], LogEntry]:
    return lambda number: LogEntry(
        number=number,
        actor_id=rollout.actor_id,
        slot=0,
        incarnation=rollout.incarnation,
        process_nonce=7,
        replaced_nonces=(5,),
        n_envs=rollout.n_envs,
        sequence=rollout.sequence,
        n_trajectories=rollout.n_envs,
        policy_version=rollout.policy_version,
    )


def payload_of(rollout: Rollout) -> Payload:
    return Payload.of(*RolloutEncoder().head_and_arrays(rollout))


def append(log: RolloutLog, rollout: Rollout, is_active: Callable[[], bool] = always) -> bool:
    return log.append(entry_of(rollout), payload_of(rollout), is_active=is_active)


def write_log(folder: Path, sequences: Sequence[int], *, policy_version: int = 1, **options: Any) -> None:
    """A log with these rollouts of actor `a`."""
    folder.mkdir(exist_ok=True)
    inventory = take_inventory(folder, HEADER, NOTHING)
    log = open_log(folder, inventory, **options)
    for sequence in sequences:
        assert append(log, make_rollout(sequence=sequence, policy_version=policy_version))
    log.close()


def open_log(folder: Path, inventory: Inventory | None = None, **options: Any) -> RolloutLog:
    options = {"max_bytes": 1 << 30, "segment_bytes": 1 << 16} | options
    if inventory is not None:
        options |= {"next_number": inventory.next_number, "segments": inventory.segments}
    return RolloutLog(folder, HEADER, **options)


def recovered(folder: Path, coverage: Coverage = NOTHING) -> list[RolloutSlice]:
    """Returns the rollouts that the log hands out."""
    inventory = take_inventory(folder, HEADER, coverage)
    open_rollouts = OpenRollouts(inventory.next_number)
    rollouts = RecoveredRollouts(folder, HEADER, inventory.found, open_rollouts)
    pieces = []
    while (piece := rollouts.take(100)) is not None:
        pieces.append(piece)
    return pieces


def sequences(folder: Path, coverage: Coverage = NOTHING) -> list[int]:
    return [piece.rollout.sequence for piece in recovered(folder, coverage)]
