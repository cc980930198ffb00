"""The oracle of learners that die: what the line of checkpoints that survives has learnt from."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.queueing.queue import RolloutSlice
from tests.chaos.games import Name, Plays, Stretch, is_of_games, stretches
from tests.chaos.ledger import Entries, Process, what_is_wrong

_LOOK_S = 0.05
# The acknowledgements to an actor that may be under way, or about to be written down: as many as it has credits.
_UNDER_WAY = 2

# One environment of one process, by its seed.
Player = tuple[str, int, int]


@dataclass
class _State:
    """The content of a checkpoint taken now: trajectories of every environment, in their order.

    Attributes:
        n_learnt: The number of all trajectories.
        last: The sequence of each environment's last trajectory.
        lines: The line that told of it.
        missing: The sequences before it that are not there.
        skipped: Those of them that this learner has not had; the others it has dropped.
    """

    n_learnt: int = 0
    last: dict[Player, int] = field(default_factory=dict)
    lines: dict[Player, str] = field(default_factory=dict)
    missing: dict[Player, tuple[range, ...]] = field(default_factory=dict)
    skipped: dict[Player, tuple[range, ...]] = field(default_factory=dict)

    def copy(self) -> "_State":
        return _State(self.n_learnt, dict(self.last), dict(self.lines), dict(self.missing), dict(self.skipped))

    def miss(self, player: Player, sequences: range, *, dropped: bool = False) -> None:
        """Notes that some are not there."""
        self.missing[player] = (*self.missing.get(player, ()), sequences)
        if not dropped:
            self.skipped[player] = (*self.skipped.get(player, ()), sequences)


class Lineage:
    """Reads what `tests.chaos.learning` writes. Any thread may ask.

    An entry for trajectories that are there twice, or out of order, ends with the lines of the file that it rests on.

    When a learner goes on from a checkpoint, the ledger goes back to it: what was learnt after it is *rolled back*, as
    the updates are. What was acknowledged to an actor that lives on, and is not in that checkpoint, is *skipped*: the
    actor does not send it again. Both may be, for a learner without `--durable`; with it, nothing may be skipped.

    Args:
        path: The file that `tests.chaos.learning` writes.
        durable: True if acknowledgements outlive the learner.
        changed: Shared by those who wait for several; None: its own.

    Attributes:
        cast: By version, the digests of the policies that were sent.
    """

    def __init__(self, path: Path, *, durable: bool, changed: threading.Condition | None = None) -> None:
        self._path = path
        self._durable = durable
        # Up to where rollouts of a process may be missing that were acknowledged for good.
        self._forgiven: dict[Process, int] = {}
        self._offset = 0
        self._n_lines = 0
        self.changed = changed or threading.Condition()  # guards all below
        self.cast: dict[int, set[str]] = {}
        self._state = _State()
        self._saved: dict[float, _State] = {}
        self._snapshot: _State | None = None
        self._checkpoint: float | None = None
        # The lineage of the process before, until this one tells where it goes on.
        self._before: _State | None = None
        self._n_taken: dict[str, int] = {}
        # The line that is being read, with its number.
        self._line = ""
        # Of this process: what was acknowledged to those that have joined, and of whom it has had anything.
        self._joined: dict[Process, int] = {}
        self._join_lines: dict[Process, str] = {}
        self._met: set[Player] = set()
        self.plays = Plays()
        self.entries = Entries()
        self.n_lives = self.n_resumed = 0
        self.n_rolled_back = self.n_skipped = self.n_stale = self.n_joins = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="chaos-lineage", daemon=True)
        self._thread.start()

    def count(self, actor_id: str) -> int:
        """Times that something of an actor was learnt from, whichever process played it, and whether it lasted."""
        with self.changed:
            return self._n_taken.get(actor_id, 0)

    @property
    def n_taken(self) -> int:
        """Times that anything was learnt from."""
        with self.changed:
            return sum(self._n_taken.values())

    @property
    def n_learnt(self) -> int:
        """Trajectories in the line that survives."""
        with self.changed:
            return self._state.n_learnt

    def forgive(self, acknowledged: Mapping[str, Mapping[int, int]]) -> None:
        """From now on, what was acknowledged may be missing, whatever was promised: somebody has damaged the log."""
        with self.changed:
            for actor_id, sequences in acknowledged.items():
                for incarnation, sequence in sequences.items():
                    self._forgiven[actor_id, incarnation] = sequence + _UNDER_WAY

    def close(self) -> None:
        """Reads what there is to its end, and stops."""
        self._closing.set()
        self._thread.join()
        self._read()

    def count_client(self, client: int) -> int:
        """Rollouts that were taken and have steps of a client whose environments dial in."""
        with self.changed:
            return self.plays.n_rollouts.get(client, 0)

    def check_plays(self, given: Mapping[int, int]) -> None:
        """Notes what environments that dial in have played, and is missing, there twice or out of order.

        Args:
            given: By the seed of each life, the actions that its client has got.
        """
        with self.changed:
            destroyed: dict[Process, set[int]] = {}
            for (actor_id, incarnation, _), skipped in self._state.skipped.items():
                destroyed.setdefault((actor_id, incarnation), set()).update(*skipped)
            found = self.plays.check(given, destroyed)
            for entries, texts in zip(
                (self.entries.lost, self.entries.duplicated, self.entries.disordered), found, strict=True
            ):
                entries.extend(texts)

    def check_acknowledged(self, actor_id: str, acknowledged: Mapping[int, int]) -> None:
        """Notes what an actor was acknowledged, by incarnation, and is not there: lost, where acknowledgements last."""
        with self.changed:
            learnt: dict[int, int] = {}
            for (name, incarnation, _), last in self._state.last.items():
                if name == actor_id:
                    learnt[incarnation] = min(learnt.get(incarnation, last), last)
            for incarnation, sequence in acknowledged.items():
                last = learnt.get(incarnation, 0)
                if sequence > last and self._durable and sequence > self._forgiven.get((actor_id, incarnation), 0):
                    self.entries.lost.append(
                        f"rollouts {last + 1} to {sequence} of {actor_id}, incarnation {incarnation}"
                    )
                elif sequence > last and (self._durable or incarnation in learnt):
                    self.n_skipped += sequence - last

    def enter_logged(self, pieces: Sequence[RolloutSlice]) -> None:
        """Notes and checks what the log has for the next process, which is to learn from it."""
        with self.changed:
            self._line = "the log"
            for piece in pieces:
                rollout = piece.rollout
                for seed in rollout.env_seeds[piece.start : piece.stop]:
                    self._enter((rollout.actor_id, rollout.incarnation, seed), rollout.sequence)
                if piece.start == 0 and is_of_games(rollout):
                    self._enter_plays((rollout.actor_id, rollout.incarnation, rollout.sequence), stretches(rollout))
                self.entries.corrupt.extend(f"in the log: {text}" for text in what_is_wrong(rollout))

    def sequences(self) -> Mapping[Player, set[int]]:
        """The rollouts of each environment that this learner has had, in the line that survives."""
        with self.changed:
            return {
                player: set(range(1, last + 1)).difference(*self._state.skipped.get(player, ()))
                for player, last in self._state.last.items()
            }

    def check_steps(self, totals: Mapping[int, NDArray[np.int64]], n_rollout_steps: int) -> None:
        """Compares with what lies in the replay buffer.

        Args:
            totals: By environments' seed, `[N]`, the numbers of the steps, as they lie there.
        """
        with self.changed:
            expected = {
                player: _steps(last, self._state.missing.get(player, ()), n_rollout_steps)
                for player, last in self._state.last.items()
            }
            for (actor_id, incarnation, seed), steps in expected.items():
                found = totals.get(seed, np.zeros(0, np.int64))
                name = f"{actor_id}, incarnation {incarnation}, environment {seed}, in the buffer"
                values, counts = np.unique(found, return_counts=True)
                _note(self.entries.lost, name, np.setdiff1d(steps, values))
                _note(self.entries.duplicated, name, values[counts > 1])
                _note(self.entries.corrupt, f"{name}, never played or dropped", np.setdiff1d(values, steps))
                _note(self.entries.disordered, name, found[1:][np.diff(found) < 0])
            strangers = totals.keys() - {seed for _, _, seed in expected}
            self.entries.corrupt.extend(f"steps of an unknown environment {seed}" for seed in strangers)

    def _follow(self) -> None:
        while not self._closing.wait(_LOOK_S):
            self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            *lines, _ = file.read().split(b"\n")
        self._offset += sum(len(line) + 1 for line in lines)
        with self.changed:
            for line in lines:
                self._n_lines += 1
                self._line = f"line {self._n_lines}: {line.decode()}"
                kind, *values = json.loads(line)
                getattr(self, f"_note_{kind}")(*values)
            self.changed.notify_all()

    def _note_started(self) -> None:
        self.n_lives += 1
        self._joined, self._join_lines, self._met = {}, {}, set()
        self._snapshot = self._checkpoint = None
        if self._before is None:
            self._before = self._state
        self._state = _State()

    def _note_session(self, session: str) -> None:
        """See `tests.chaos.ranks`."""

    def _note_cast(self, version: int, digest: str) -> None:
        self.cast.setdefault(version, set()).add(digest)

    def _note_resumed(self, checkpoint: float, n_updates: int = 0) -> None:
        del n_updates
        self.n_resumed += 1
        if checkpoint not in self._saved:
            self.entries.corrupt.append(f"training went on from a checkpoint that nobody took, of {checkpoint} s")
            return
        self._state = self._saved[checkpoint].copy()
        if self._before is not None:
            self.n_rolled_back += self._before.n_learnt - self._state.n_learnt
            self._before = None

    def _note_snapshot(self) -> None:
        self._snapshot = self._state.copy()
        self._name_snapshot()

    def _note_saved(self, checkpoint: float) -> None:
        self._checkpoint = checkpoint
        self._name_snapshot()

    def _name_snapshot(self) -> None:
        """One comes for each checkpoint, and its name, in either order."""
        if self._snapshot is not None and self._checkpoint is not None:
            self._saved[self._checkpoint] = self._snapshot
            self._snapshot = self._checkpoint = None

    def _note_joined(self, actor_id: str, incarnation: int, acknowledged: int) -> None:
        self.n_joins += 1
        if (actor_id, incarnation) not in self._joined:
            self._joined[actor_id, incarnation] = acknowledged
            self._join_lines[actor_id, incarnation] = self._line

    def _note_corrupt(self, text: str) -> None:
        self.entries.corrupt.append(text)

    def _note_played(self, actor_id: str, incarnation: int, sequence: int, played: list[list[int]]) -> None:
        self._enter_plays((actor_id, incarnation, sequence), [Stretch(*one) for one in played])

    def _enter_plays(self, name: Name, played: Sequence[Stretch]) -> None:
        wrong = self.plays.enter(name, played)
        if wrong is not None:
            self.entries.corrupt.append(wrong)

    def _note_taken(self, actor_id: str, incarnation: int, sequence: int, seeds: list[int]) -> None:
        if self._before is not None and self._before.n_learnt:
            self.entries.lost.append(f"training began again; {self._before.n_learnt} trajectories had been learnt from")
        self._before = None
        self._n_taken[actor_id] = self._n_taken.get(actor_id, 0) + 1
        for seed in seeds:
            self._enter((actor_id, incarnation, seed), sequence)
            self._state.n_learnt += 1

    def _note_stale(self, actor_id: str, incarnation: int, sequence: int, seeds: list[int]) -> None:
        self.n_stale += len(seeds)
        for seed in seeds:
            self._enter((actor_id, incarnation, seed), sequence)
            self._state.miss((actor_id, incarnation, seed), range(sequence, sequence + 1), dropped=True)

    def _enter(self, player: Player, sequence: int) -> None:
        actor_id, incarnation, seed = player
        last = self._state.last.get(player, 0)
        gap = range(last + 1, sequence)
        if gap and self._may_be_missing(player, gap):
            self.n_skipped += len(gap)
            self._state.miss(player, gap)
            last = sequence - 1
        name = f"rollout {sequence} of {actor_id}, incarnation {incarnation}, environment {seed}"
        if sequence <= last:
            self.entries.duplicated.append(f"{name}{self._rests_on(player)}")
        elif sequence != last + 1:
            entries = self.entries.lost if self._durable else self.entries.disordered
            entries.append(f"before {name}, after {last}{self._rests_on(player)}")
            self._state.miss(player, range(last + 1, sequence))
        self._met.add(player)
        self._state.last[player] = max(last, sequence)
        self._state.lines[player] = self._line

    def _rests_on(self, player: Player) -> str:
        """The lines that an entry follows from, in their order."""
        before = self._state.lines.get(player)
        joined = None if player in self._met else self._join_lines.get(player[:2])
        return "".join(f"\n    {line}" for line in (before, joined, self._line) if line is not None)

    def _may_be_missing(self, player: Player, gap: range) -> bool:
        process = player[:2]
        if self._durable:
            return gap.stop - 1 <= self._forgiven.get(process, 0)
        # what was acknowledged by a learner that is no more does not come again
        return player not in self._met and gap.stop - 1 == self._joined.get(process, 0)


def _steps(last: int, missing: tuple[range, ...], n_rollout_steps: int) -> NDArray[np.int64]:
    """Numbers of the steps in rollouts 1 to `last`, without those that are missing."""
    there = np.ones(last, np.bool_)
    for sequences in missing:
        there[sequences.start - 1 : sequences.stop - 1] = False
    rollouts = there.nonzero()[0]
    return (rollouts[:, None] * n_rollout_steps + np.arange(n_rollout_steps)).ravel()


def _note(entries: list[str], name: str, steps: NDArray[np.int64]) -> None:
    if len(steps):
        entries.append(f"{len(steps)} steps, from {steps[0]} to {steps[-1]}, of {name}")
