"""Measures the cost of checkpoints during training: updates per second while they are written, pauses, bytes.

    python -m benchmarks.checkpoints [--seconds 4] [--rounds 5] [--only "1M transitions"]

A small network learns from a full replay buffer in one thread of torch, with an insertion for every eight samples.
Rounds with and without checkpoints take turns in one run. Checkpoints follow each other without a pause, so the share
of new rows is that of a run that writes as often as it can. The ratio is the median over rounds. `benchmarks.resume`
measures reading.
"""

import argparse
import dataclasses
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box

from benchmarks.ingest import Load, synthetic_rollout
from benchmarks.table import Figure, print_table, ratio
from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.checkpoints.pace import Pace
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.checkpoint import BufferSnapshot
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.training.checkpointing import SHARE
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from rollcast.services.wire.allocator import reuse_large_buffers

N_ENVS = 4
BATCH_SIZE = 256
# DQN's default is 32; fewer samples per insert mean more to write
SAMPLES_PER_INSERT = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A replay buffer."""

    name: str
    observation: Box
    settings: ReplaySettings
    n_steps: int = 64

    @property
    def load(self) -> Load:
        """The rollout to insert."""
        return Load(self.name, self.observation, n_steps=self.n_steps, n_envs=N_ENVS, target="")


FOUR_FLOATS, IMAGE = Box(-10, 10, (4,), np.float32), Box(0, 255, (84, 84, 4), np.uint8)
CASES = (
    Case("1M transitions", FOUR_FLOATS, ReplaySettings(capacity=1_000_000)),
    Case("1M transitions, prioritised", FOUR_FLOATS, ReplaySettings(capacity=1_000_000, sampler="prioritized")),
    Case(
        "1M transitions, removal by priority",
        FOUR_FLOATS,
        ReplaySettings(capacity=1_000_000, sampler="prioritized", removal="lowest_priority"),
    ),
    Case("16k rollouts of 64 steps", FOUR_FLOATS, ReplaySettings(capacity=16_000, entry="rollouts")),
    Case("1 GB of images", IMAGE, ReplaySettings(capacity=34_000), n_steps=8),
)


class Training:
    """Updates a small network from a full buffer, and inserts, in one thread."""

    def __init__(self, case: Case) -> None:
        reuse_large_buffers()  # as a learner does
        torch.set_num_threads(1)
        space = {FLAT_SUBSTEP: case.load.spaces[FLAT_SUBSTEP]}
        self.buffer = ReplayBuffer(
            case.settings, space, n_rollout_steps=case.n_steps, batch_size=BATCH_SIZE, announce=lambda _: None
        )
        self._rollout = synthetic_rollout(case.load, "actor")
        self._n_drawn = BATCH_SIZE if case.settings.entry == "transitions" else BATCH_SIZE // 8
        n_entries = 0
        while self.buffer.size < self.buffer.info().capacity * 0.9:
            n_entries = self.buffer.insert(self._rollout)
        self._insert_every = max(1, SAMPLES_PER_INSERT * n_entries // self._n_drawn)
        self._n_updates = 0
        self._shape = case.observation.shape
        self._network = torch.nn.Sequential(
            torch.nn.Linear(int(np.prod(self._shape)), 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        )
        self._optimiser = torch.optim.Adam(self._network.parameters())

    def update(self) -> tuple[float, float]:
        """Inserts if it is time to, and updates; returns the seconds of each."""
        began = time.perf_counter()
        self._n_updates += 1
        if self._n_updates % self._insert_every == 0:
            self.buffer.insert(self._rollout)
        inserted = time.perf_counter()
        sample = self.buffer.sample(self._n_drawn)
        (columns,) = sample.substeps.values()
        observation = torch.as_tensor(columns.observation[""]).flatten(0, -len(self._shape) - 1).flatten(1)
        loss = self._network(observation[:BATCH_SIZE].float()).square().mean()
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return inserted - began, time.perf_counter() - inserted


class Writer:
    """Writes checkpoints of a buffer without a pause: the trainer's thread takes them, another thread writes them."""

    def __init__(self, buffer: ReplayBuffer, folder: Path) -> None:
        self._buffer = buffer
        self._store = CheckpointStore(folder, keep=2)
        self._store.tidy()
        self._previous: Path | None = None
        self._thread: threading.Thread | None = None
        self._pace = Pace(SHARE)
        # The bytes and seconds of each checkpoint.
        self.written: list[tuple[int, float]] = []

    def begin_if_idle(self) -> float:
        """Takes a checkpoint of the buffer unless one is being written; returns the seconds that it took."""
        if self._thread is not None and self._thread.is_alive():
            return 0.0
        began = time.perf_counter()
        snapshot = self._buffer.checkpoint.begin()
        pause = time.perf_counter() - began
        self._pace = Pace(SHARE)
        self._thread = threading.Thread(target=self._write, args=(snapshot, began), daemon=True)
        self._thread.start()
        return pause

    def finish(self) -> None:
        """Waits for the last checkpoint."""
        if self._thread is not None:
            self._pace.end_rests()
            self._thread.join(600)

    def _write(self, snapshot: BufferSnapshot, began: float) -> None:
        number = len(self.written)
        staged = self._store.stage(number)
        previous = None if self._previous is None else self._previous / "replay"
        digests = snapshot.write(staged / "replay", previous, rest=self._pace.rest)
        n_bytes = sum(path.stat().st_size for path in staged.rglob("*") if path.stat().st_nlink == 1)
        info = CheckpointInfo(
            n_updates=number, env_steps=0, policy_version=0, mean_return=None, has_ended=False, software_version=""
        )
        self._previous = self._store.commit(staged, info, previous=self._previous, digests=digests)
        self.written.append((n_bytes, time.perf_counter() - began))


@dataclasses.dataclass
class Round:
    """The updates of a round: the rate per second, and the longest of each kind in seconds."""

    rate: float
    insertion: float
    update: float
    begin: float


def train(training: Training, seconds: float, writer: Writer | None) -> Round:
    """Updates for some seconds, with or without checkpoints."""
    n, began = 0, time.perf_counter()
    worst = Round(0.0, 0.0, 0.0, 0.0)
    while (elapsed := time.perf_counter() - began) < seconds:
        if writer is not None:
            worst.begin = max(worst.begin, writer.begin_if_idle())
        insertion, update = training.update()
        worst.insertion, worst.update = max(worst.insertion, insertion), max(worst.update, update)
        n += 1
    return dataclasses.replace(worst, rate=n / elapsed)


def measure(case: Case, rounds: int, seconds: float) -> Sequence[str | Figure]:
    """Returns a row of the table."""
    training = Training(case)
    with tempfile.TemporaryDirectory(prefix="rollcast-checkpoints-", dir=".") as folder:
        writer = Writer(training.buffer, Path(folder))
        train(training, seconds / 2, None)
        writer.begin_if_idle()
        writer.finish()
        without, with_ = [], []
        for _ in range(rounds):
            without.append(train(training, seconds, None))
            with_.append(train(training, seconds, writer))
            writer.finish()
    first, later = writer.written[0], writer.written[1:]
    n_bytes, took = zip(*later, strict=True)

    def worst(found: list[Round], name: str) -> Figure:
        return Figure([getattr(one, name) for one in found], ".1f", scale=1e3)

    return (
        case.name,
        Figure([one.rate for one in without]),
        Figure([one.rate for one in with_]),
        ratio((one.rate for one in with_), (one.rate for one in without), ".0%"),
        worst(with_, "begin"),
        worst(without, "update"),
        worst(with_, "update"),
        worst(without, "insertion"),
        worst(with_, "insertion"),
        f"{first[0] / 1e6:,.0f} MB, {first[1]:.2f} s",
        Figure(n_bytes, ",.1f", "MB", scale=1e-6),
        Figure(took, ".2f", "s"),
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are printed")
    parser.add_argument("--only", help="measure only buffers whose name contains this")
    options = parser.parse_args()
    rows = [
        measure(case, options.rounds, options.seconds)
        for case in CASES
        if not options.only or options.only in case.name
    ]
    print(f"\n{options.rounds} rounds of {options.seconds} s; the longest of a round in ms, medians")
    header = ("buffer", "updates/s without", "with", "ratio", "begin ms", "update ms without", "update ms")
    print_table((*header, "insertion ms without", "insertion ms", "first checkpoint", "later ones", "in"), rows)


if __name__ == "__main__":
    main()
