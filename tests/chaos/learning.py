"""A learner as `rollcast learner` runs it, which also writes down what it has learnt from.

    python -m tests.chaos.learning FILE learner [options of `rollcast learner`]

Lines of JSON, each written by the kernel before the learner goes on, so that SIGKILL loses none of them:

    ["started"]                      a process
    ["resumed", ID]                  the state went back to what a checkpoint has
    ["snapshot"], ["saved", ID]      the state was taken for a checkpoint; which one, in either order
    ["joined", actor, incarnation, acknowledged]
                                     an actor, and what it need not send again
    ["taken", [[actor, incarnation, sequence, [seed, ...]], ...], [what is wrong, ...]]
                                     trajectories were learnt from, or put into the buffer
    ["stale", actor, incarnation, sequence, [seed, ...]]
                                     trajectories that were dropped

An ID is the number of seconds of training as the checkpoint has it: no two are the same.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.learner.actors.taking import RolloutTaker
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.batch import Batch
from rollcast.learner.commands.cli import main
from rollcast.learner.experience.experience import ExperienceSource, FreshExperience, SaveExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.experience.replayed import ReplayedExperience
from rollcast.learner.ingest.assembly import AssembledBatch, Assembly
from rollcast.learner.ingest.queue import RolloutSlice
from rollcast.learner.ingest.records import ActorRecord
from rollcast.learner.ingest.registry import ActorRegistry
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.services.rollouts.join import JoinOffer
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.chaos.ledger import what_is_wrong


class _Record:
    """The file.

    Attributes:
        moving: Held while something changes that a checkpoint has, until it is written down; and by whoever takes that.
        coming: Lines of what has been taken, in this order, and is in no checkpoint yet: no update was made of it.
    """

    def __init__(self, path: Path) -> None:
        self.moving = threading.Lock()
        self.coming: list[tuple[object, ...]] = []
        self._opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *entry: object) -> None:
        """Appends a line, in one piece."""
        os.write(self._opened, json.dumps(entry).encode() + b"\n")

    def write_coming(self) -> None:
        """Appends what has been taken: now it counts."""
        for entry in self.coming:
            self.write(*entry)
        self.coming.clear()


def record_learning(record: _Record) -> None:
    """From now on, what this process learns from is written down."""
    record.write("started")
    _record_checkpoints(record)
    _record_actors(record)
    _record_stale(record)
    _record_batches(record)
    _record_insertions(record)


def _record_checkpoints(record: _Record) -> None:
    state, load_state = TrainingProgress.state, TrainingProgress.load_state

    def saved(progress: TrainingProgress) -> dict[str, Any]:
        taken = state(progress)
        record.write("saved", taken["seconds"])
        return taken

    def resumed(progress: TrainingProgress, taken: dict[str, Any]) -> None:
        record.write("resumed", taken["seconds"])
        load_state(progress, taken)

    TrainingProgress.state, TrainingProgress.load_state = saved, resumed
    for source in (FreshExperience, ReplayedExperience):
        _record_snapshots(record, source)


def _record_snapshots(record: _Record, source: type[ExperienceSource]) -> None:
    begin_save = source.begin_save

    def snapshot(experience: ExperienceSource) -> SaveExperience:
        with record.moving:
            save = begin_save(experience)
            record.write("snapshot")
        return save

    source.begin_save = snapshot


def _record_actors(record: _Record) -> None:
    join = ActorRegistry.join

    def joined(registry: ActorRegistry, offer: JoinOffer) -> ActorRecord:
        actor = join(registry, offer)
        record.write("joined", actor.actor_id, actor.incarnation, actor.acknowledged_sequence)
        return actor

    ActorRegistry.join = joined


def _record_batches(record: _Record) -> None:
    add, finish, restart, update = Assembly.add, Assembly.finish, Assembly.restart, Impala.update
    ready = AssembledBatch.ready
    pieces: list[RolloutSlice] = []
    # By the `id` of a batch that is full, which may be before the trainer comes for it: the batch and its rollouts.
    full: dict[int, tuple[AssembledBatch, list[RolloutSlice]]] = {}

    def added(assembly: Assembly, piece: RolloutSlice) -> None:
        add(assembly, piece)
        pieces.append(piece)

    def finished(assembly: Assembly) -> AssembledBatch:
        batch = finish(assembly)
        full[id(batch)] = batch, pieces.copy()
        pieces.clear()
        return batch

    def restarted(assembly: Assembly) -> None:
        restart(assembly)
        pieces.clear()
        full.clear()

    def taken(assembled: AssembledBatch) -> Batch:
        batch = ready(assembled)
        _, its_pieces = full.pop(id(assembled))
        faults = _faults_of_batch(batch, its_pieces)
        record.coming.append(("taken", [_named(piece) for piece in its_pieces], faults))
        return batch

    def updated(algorithm: Impala, batch: Batch, **options: Any) -> Metrics:
        metrics = update(algorithm, batch, **options)
        record.write_coming()
        return metrics

    Assembly.add, Assembly.finish, Assembly.restart, Impala.update = added, finished, restarted, updated
    AssembledBatch.ready = taken


def _faults_of_batch(batch: Batch, pieces: list[RolloutSlice]) -> list[str]:
    faults = [text for piece in pieces if piece.start == 0 for text in _faults(piece.rollout)]
    columns = batch.substeps[FLAT_SUBSTEP]
    played = [piece.rollout.substeps[FLAT_SUBSTEP] for piece in pieces]
    # [T, B, ...], or [1, B, ...] of what is known before the first row
    rows = {
        "observations": (columns.observation[""], [its.observation[""] for its in played]),
        "actions": (columns.action, [its.action for its in played]),
        "rewards": (batch.reward, [piece.rollout.reward for piece in pieces]),
        "states": (columns.initial_state[None], [its.initial_state[None] for its in played]),
        "earlier frames": (
            columns.previous_observation[""][None],
            [its.previous_observation[""][None] for its in played],
        ),
    }
    for name, (array, whole) in rows.items():
        cut = [its[:, piece.start : piece.stop] for its, piece in zip(whole, pieces, strict=True)]
        if not np.array_equal(array.numpy(), np.concatenate(cut, axis=1)):
            faults.append(f"a batch has other {name} than its rollouts")
    return faults


def _record_stale(record: _Record) -> None:
    note = RolloutTaker._note

    def noted(taker: RolloutTaker, piece: RolloutSlice, is_stale: bool) -> None:
        note(taker, piece, is_stale)
        if is_stale:
            record.coming.append(("stale", *_named(piece)))

    RolloutTaker._note = noted


def _record_insertions(record: _Record) -> None:
    insert = ReplayBuffer.insert

    def inserted(buffer: ReplayBuffer, rollout: Rollout, **options: Any) -> int:
        with record.moving:
            n_entries = insert(buffer, rollout, **options)
            whole = RolloutSlice(rollout, 0, rollout.n_envs)
            record.coming.append(("taken", [_named(whole)], _faults(rollout)))
            record.write_coming()
        return n_entries

    ReplayBuffer.insert = inserted


def _named(piece: RolloutSlice) -> tuple[str, int, int, tuple[int, ...]]:
    rollout = piece.rollout
    return rollout.actor_id, rollout.incarnation, rollout.sequence, rollout.env_seeds[piece.start : piece.stop]


def _faults(rollout: Rollout) -> list[str]:
    name = f"rollout {rollout.sequence} of {rollout.actor_id}, incarnation {rollout.incarnation}"
    return [f"{name}: {text}" for text in what_is_wrong(rollout)]


if __name__ == "__main__":
    record_learning(_Record(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
