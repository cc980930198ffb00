"""A learner as `rollcast learner` runs it, which also writes down what it has learnt from.

    python -m tests.chaos.learning FILE learner [options of `rollcast learner`]

Lines of JSON, each written by the kernel before the learner goes on, so that SIGKILL loses none of them:

    ["started"]                      a process
    ["session", text]                one of several ranks has found the others; the same text at all of them
    ["resumed", ID, updates]         the state went back to what a checkpoint has, after so many updates
    ["cast", version, digest]        a policy was about to be sent
    ["snapshot"], ["saved", ID]      the state was taken for a checkpoint; which one, in either order
    ["joined", actor, incarnation, acknowledged]
                                     an actor, and what it need not send again
    ["taken", actor, incarnation, sequence, [seed, ...]]
                                     trajectories of a rollout were learnt from, or put into the buffer
    ["stale", actor, incarnation, sequence, [seed, ...]]
                                     trajectories that were dropped
    ["played", actor, incarnation, sequence, [[seed, first, n], ...]]
                                     the steps of a rollout that environments that dial in have played
    ["corrupt", what is wrong]       about a batch, or about a rollout in it

Trajectories stand in the order in which the learner took them, whether it learnt from them or dropped them. Their lines
are written once an update has used them, or the buffer has them: until then they do not count.

An ID is the number of seconds of training as the checkpoint has it: no two are the same.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.batch import Batch
from rollcast.learner.batching.assembly import AssembledBatch, Assembly
from rollcast.learner.batching.collector import RolloutCollector
from rollcast.learner.experience.experience import ExperienceSource, FreshExperience, SaveExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.experience.replayed import ReplayedExperience
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.ranks.ranks import Ranks
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.serving import publisher
from rollcast.learner.serving.records import ActorRecord
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.services.joining.join import JoinOffer
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.policies import PolicyState
from rollcast.services.process.interrupts import run_to_end
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from rollcast.tools.cli import main
from tests.chaos.games import is_of_games, stretches
from tests.chaos.ledger import what_is_wrong
from tests.chaos.policies import digest_of


class Record:
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


def record_learning(record: Record) -> None:
    """From now on, what this process learns from is written down; `unittest.mock.patch.stopall` ends it."""
    record.write("started")
    _record_ranks(record)
    _record_policies(record)
    _record_checkpoints(record)
    _record_actors(record)
    _record_pieces(record)
    _record_batches(record)
    _record_insertions(record)


def _replace(owner: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        patch.object(owner, name, method).start()


def _record_ranks(record: Record) -> None:
    tell_run, told_run = Ranks.tell_run, Ranks.told_run

    def told(ranks: Ranks, *run: Any) -> None:
        if ranks.n_ranks > 1:
            ranks.group.tell("session", session := uuid4().hex)
            record.write("session", session)
        tell_run(ranks, *run)

    def was_told(ranks: Ranks) -> Any:
        run = told_run(ranks)
        record.write("session", ranks.group.told("session", 0, what="its session"))
        return run

    _replace(Ranks, tell_run=told, told_run=was_told)


def _record_policies(record: Record) -> None:
    encode_policy = publisher.encode_policy

    def encoded(version: int, state: PolicyState, progress: float) -> EncodedPolicy:
        record.write("cast", version, digest_of(state))
        return encode_policy(version, state, progress)

    patch.object(publisher, "encode_policy", encoded).start()


def _record_checkpoints(record: Record) -> None:
    state, load_state = TrainingProgress.state, TrainingProgress.load_state

    def saved(progress: TrainingProgress) -> dict[str, Any]:
        taken = state(progress)
        record.write("saved", taken["seconds"])
        return taken

    def resumed(progress: TrainingProgress, taken: dict[str, Any]) -> None:
        record.write("resumed", taken["seconds"], taken["updates"])
        load_state(progress, taken)

    _replace(TrainingProgress, state=saved, load_state=resumed)
    for source in (FreshExperience, ReplayedExperience):
        _record_snapshots(record, source)


def _record_snapshots(record: Record, source: type[ExperienceSource]) -> None:
    begin_save = source.begin_save

    def snapshot(experience: ExperienceSource) -> SaveExperience:
        with record.moving:
            save = begin_save(experience)
            record.write("snapshot")
        return save

    _replace(source, begin_save=snapshot)


def _record_actors(record: Record) -> None:
    join = ActorRegistry.join

    def joined(registry: ActorRegistry, offer: JoinOffer) -> ActorRecord:
        actor = join(registry, offer)
        record.write("joined", actor.actor_id, actor.incarnation, actor.acknowledged_sequence)
        return actor

    _replace(ActorRegistry, join=joined)


def _record_batches(record: Record) -> None:
    add, finish, restart, update = Assembly.add, Assembly.finish, Assembly.restart, Impala.update
    ready = AssembledBatch.ready
    pieces: list[RolloutSlice] = []
    # By the `id` of a batch that is full, which may be before the trainer comes for it: the batch and its rollouts.
    full: dict[int, tuple[AssembledBatch, list[RolloutSlice]]] = {}
    newest: list[Batch] = []

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
        record.coming.extend(("corrupt", text) for text in _faults_of_batch(batch, its_pieces))
        newest[:] = [batch]
        return batch

    def updated(algorithm: Impala, batch: Batch, **options: Any) -> Metrics:
        metrics = update(algorithm, batch, **options)
        # a rank without a batch updates with the others
        if any(batch is one for one in newest):
            record.write_coming()
        return metrics

    _replace(Assembly, add=added, finish=finished, restart=restarted)
    _replace(AssembledBatch, ready=taken)
    _replace(Impala, update=updated)


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
    acting = [_acting(piece) for piece in pieces]
    for name, (array, whole) in rows.items():
        cut = [its[:, trajectories] for its, trajectories in zip(whole, acting, strict=True)]
        if not np.array_equal(array.numpy(), np.concatenate(cut, axis=1)):
            faults.append(f"a batch has other {name} than its rollouts")
    return faults


def _acting(piece: RolloutSlice) -> NDArray[np.int64]:
    """The trajectories of a piece that a batch has: a place without a client has none."""
    trajectories, valid = np.arange(piece.start, piece.stop), piece.rollout.valid
    return trajectories if valid is None else trajectories[valid[:, trajectories].any(axis=0)]


def _record_pieces(record: Record) -> None:
    note = RolloutCollector._note

    def noted(collector: RolloutCollector, piece: RolloutSlice, is_stale: bool) -> None:
        note(collector, piece, is_stale)
        rollout = piece.rollout
        seeds = rollout.env_seeds[piece.start : piece.stop]
        if piece.start == 0 and is_of_games(rollout):
            name = (rollout.actor_id, rollout.incarnation, rollout.sequence)
            record.coming.append(("played", *name, stretches(rollout)))
        kind = "stale" if is_stale else "taken"
        record.coming.append((kind, rollout.actor_id, rollout.incarnation, rollout.sequence, seeds))

    _replace(RolloutCollector, _note=noted)


def _record_insertions(record: Record) -> None:
    insert = ReplayBuffer.insert

    def inserted(buffer: ReplayBuffer, rollout: Rollout, **options: Any) -> int:
        with record.moving:
            n_entries = insert(buffer, rollout, **options)
            record.coming.extend(("corrupt", text) for text in _faults(rollout))
            record.write_coming()
        return n_entries

    _replace(ReplayBuffer, insert=inserted)


def _faults(rollout: Rollout) -> list[str]:
    name = f"rollout {rollout.sequence} of {rollout.actor_id}, incarnation {rollout.incarnation}"
    return [f"{name}: {text}" for text in what_is_wrong(rollout)]


if __name__ == "__main__":
    record_learning(Record(Path(sys.argv[1])))
    run_to_end(lambda: main(sys.argv[2:]))
