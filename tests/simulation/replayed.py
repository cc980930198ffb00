"""Runs a scenario of `rollcast replay serve`: actors fill a replay buffer by a limiter, and others draw from it."""

import random
import time
from collections import Counter
from typing import Any

from tests.simulation.world import LEARNER, PLAYS_S, POLICY, SPACES, World

# ruff: isort: split
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.inserter import ReplayInserter
from rollcast.learner.replay.served import serve_buffers
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import make_buffers
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import LearnerUnreachableError, MissingMessageError, NotReadyError
from rollcast.services.rollouts.rollouts import Rollout
from tests.simulation.scheduler import Process, ScheduleError


class _Watched:
    """A replay buffer of a world."""

    def __init__(self, buffer: ReplayBuffer, world: "ReplayWorld") -> None:
        self._buffer, self._world = buffer, world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def insert(self, rollout: Rollout, **options: Any) -> int:
        n_entries = self._buffer.insert(rollout, **options)
        self._world.note_inserted(rollout)
        return n_entries


class ReplayWorld(World):
    """A server of a replay buffer, actors that fill it, and samplers."""

    client = "sampler"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The trajectories of each rollout that the last server has inserted, and the batches that each sampler has.
        self._inserted: Counter[int] = Counter()
        self._n_batches: Counter[str] = Counter()

    def _learn(self, process: Process) -> None:
        """The server's main thread: what `replay_serve` does, to the end of what is simulated."""
        del process
        scenario = self.scenario
        if self._has_trained:  # it was killed while it ended
            self.is_over = True
            return
        self._inserted = Counter()
        settings = ReplaySettings(
            capacity=4 * scenario.batch_size if scenario.factor > 1.0 else 1000,
            sampler=("uniform", "prioritized", "fifo")[scenario.n_updates % 3],
            samples_per_insert={1: 1.0, 2: 2.0}.get(scenario.checkpoint_every),
        )
        buffers: Any = {
            key: _Watched(buffer, self)
            for key, buffer in make_buffers(
                settings, SPACES, n_rollout_steps=1, batch_size=scenario.batch_size, n_envs=MAX_TRAJECTORIES
            ).items()
        }
        actors = RemoteDistributedActors(
            POLICY,
            1,
            1,
            envs_per_actor=scenario.envs_per_actor,
            serving=ServingOptions(
                addresses=(LEARNER,),
                destination=ReplayInserter(buffers),
                replay=serve_buffers(buffers, SPACES, n_rollout_steps=1),
            ),
        )
        with actors:
            names = [f"{self.client}-{i}" for i in range(scenario.n_clients)]
            while any(self._n_batches[name] < scenario.n_updates for name in names) or self._somebody_starves():
                time.sleep(0.25)
            self._has_trained = True
        self.is_over = True

    def note_inserted(self, rollout: Rollout) -> None:
        """Notes what a buffer has taken."""
        number = int(rollout.reward[0, 0])
        self._inserted[number] += rollout.n_envs
        if self._inserted[number] > self.scenario.envs_per_actor:
            raise ScheduleError(f"{self._name(number, 0)} was inserted twice")
        self._note_served(number)

    def _run_client(self, name: str, nonce: int, process: Process) -> None:
        """A sampler's main thread: what a learner elsewhere does."""
        del process
        rng = random.Random(nonce)
        while not self.is_over:
            try:
                with ReplayClient(LEARNER) as client:
                    begun = self.sim.n_steps
                    for batch in client.samples(self.scenario.batch_size, timeout_s=20.0):
                        if not (batch.reward < len(self._played)).all() or (batch.reward % 1).any():
                            raise ScheduleError(f"a batch has other numbers than were played: {batch.reward}")
                        self._n_batches[name] += 1
                        if begun > self._last_fault[0]:
                            self._served.add(name)
                        begun = self.sim.n_steps
                        time.sleep(rng.choice(PLAYS_S))
                        client.update_priorities(batch.keys, batch.weights)
            except (LearnerUnreachableError, NotReadyError, MissingMessageError):
                time.sleep(0.5)
        self._ended.add(name)

    def check(self) -> None:
        """Checks that what was acknowledged is in the buffer; what is there twice was found when it came.

        Raises:
            ScheduleError: Something was lost.
        """
        if self.n_kills:
            return  # the buffer was in memory only, as documented
        acknowledged = [number for life in self.lives for number in life.numbers[: life.n_acknowledged]]
        lost = [number for number in acknowledged if self._inserted[number] < self.scenario.envs_per_actor]
        if lost:
            raise ScheduleError(f"acknowledged and lost: {[self._name(number, 0) for number in lost]}")
