"""Runs a scenario: real actors, relays and learners as tasks of a scheduler, and what must be true of them."""

import contextlib
import json
import math
import random
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import gymnasium
import numpy as np
import torch  # noqa: F401 - before the threads are the simulator's

from tests.simulation import threads

threads.install()

# ruff: noqa: E402 - what follows has its locks and clocks from its import on
from rollcast.actor.connection.evaluator import EvaluatorConnection
from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.durable import segments
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.services.errors import (
    ActorReplacedError,
    LearnerUnreachableError,
    RefusedError,
    RollcastError,
    TrainingEndedError,
)
from rollcast.services.joining.evaluation import EvaluationPlan, PlayedEpisodes
from rollcast.services.joining.join import ActorRole, JoinAgreement, JoinOffer
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.server import listening
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from rollcast.tools.relay.relay import RollcastRelay
from tests.rollouts import build_rollout
from tests.simulation.disk import Disk
from tests.simulation.network import KEEPALIVE_S, Channel, Connection, Network, Server, begin_network
from tests.simulation.scenario import Fault, Scenario
from tests.simulation.scheduler import Choices, Process, ScheduleError, Scheduler
from tests.simulation.shrink import Outcome
from tests.simulation.threads import simulated

# For the rest of this process, as threads and clocks: to put them in for each schedule costs 2 % of it.
for module, name, value in (
    (grpc, "server", Server),
    (grpc, "insecure_channel", lambda target, options=(): Channel(target)),
    (listening, "check_bindable", lambda *_arguments, **_options: None),
):
    setattr(module, name, value)

SPACES: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=gymnasium.spaces.Box(-1, 1, (1,), np.float32), action=gymnasium.spaces.Discrete(2)
    )
}
POLICY = TorchPolicy(SPACES, PolicySpec(hidden_sizes=(1,)))
_STATE = POLICY.state_arrays()
LEARNER = "127.0.0.1:5000"
_MAX_LAG = 1
# The seconds that a rollout, and an update, take.
PLAYS_S = (0.0, 0.01, 0.5, 3.0)
_LEARNS_S = (0.0, 0.01, 1.0)
# A killed process is started again after so many seconds.
_BACK_S = (0.0, 0.5, 8.0)

# So long an actor, or a relay, looks for its learner, in seconds.
_PATIENCE_S = 120.0
# Whoever lives is served so soon after the last fault, in seconds.
_SERVED_WITHIN_S = 600.0
# The time that the slowest disk takes for a sync. With `--max-policy-lag`, rollouts are too old after two of them.
_SLOWEST_SYNC_S = 20.0

# Trajectories of a rollout, by the number that is written in it: the number, the first, and the one after the last.
Piece = tuple[int, int, int]


@dataclass
class Life:
    """One process of an actor, and what it has played.

    Attributes:
        numbers: The numbers of its rollouts, in the order of their sequence from `first_sequence` on.
        first_sequence: The sequence of the first.
        n_acknowledged: So many of them are acknowledged.
    """

    process: Process
    numbers: list[int] = field(default_factory=list)
    first_sequence: int = 1
    n_acknowledged: int = 0


@dataclass
class _Learnt:
    """The weights of a policy: the trajectories that they have learnt from, in their order."""

    pieces: list[Piece] = field(default_factory=list)
    n_updates: int = 0

    def copy(self) -> "_Learnt":
        return _Learnt(list(self.pieces), self.n_updates)


@dataclass
class _Checkpoint:
    learnt: _Learnt
    actors: str


class World:
    """The processes of one schedule. Everything in it survives them: it is what disks and people know.

    Args:
        scenario: What is played.
        choices: Decides who goes on.
    """

    # The name of those besides actors.
    client = "evaluator"

    def __init__(self, scenario: Scenario, choices: Choices, folder: Path | None) -> None:
        self.scenario = scenario
        self.sim = Scheduler(choices)
        self.network: Network = begin_network()
        self._rng = random.Random(len(scenario.faults) * 7 + scenario.n_actors)
        self._folder = folder
        self._checkpoint: _Checkpoint | None = None
        self.disk = Disk(self.sim)
        self.learner = Process("learner")
        # Those of each name that live, the newest last.
        self._actors: dict[str, list[Process]] = {}
        # The names of those that were killed before they heard whether they had joined.
        self._killed_unheard: set[str] = set()
        self._relays: dict[str, Process] = {}
        self._n_lives = 0
        # What the actors know.
        self.lives: list[Life] = []
        # Of each rollout: who has played it, its sequence, and the step at which it was begun.
        self._played: list[tuple[Life, int, int]] = []
        self._joined: set[Process] = set()
        self._ended: set[str] = set()
        # What the last learner knows.
        self.learnt = _Learnt()
        self.left_over: list[Piece] = []
        self.n_stale = 0
        self.n_kills = 0
        # The step and the time of the last fault, and the names of those that were served since.
        self._last_fault = (0, self.sim.now)
        self._served: set[str] = set()
        self._has_trained = False
        self.is_over = False

    # -- processes --

    def begin(self) -> None:
        """Begins all processes, and sets the faults."""
        self._start_learner(0.0)
        for i in range(self.scenario.n_relays):
            self._start_relay(f"relay-{i}", 0.0)
        for i in range(self.scenario.n_actors):
            self._start_actor(f"actor-{i}", 0.0)
        for i in range(self.scenario.n_clients):
            self._start_actor(f"{self.client}-{i}", 0.0)
        for i in range(self.scenario.n_hollow):
            name = f"hollow-{i}"
            self.sim.spawn(Process(name), "main", partial(self._send_nothing, name))
        for fault in self.scenario.faults:
            self.sim.at_step(fault.step, partial(self._strike, fault))

    def _start_learner(self, delay_s: float) -> None:
        self.learner = process = Process("learner")
        self.sim.spawn(process, "main", lambda: self._learn(process), delay_s=delay_s)

    def _start_relay(self, name: str, delay_s: float) -> None:
        process = self._relays[name] = Process(name)
        self.sim.spawn(process, "main", lambda: self._relay(name), delay_s=delay_s)

    def _start_actor(self, name: str, delay_s: float) -> None:
        self._n_lives += 1
        nonce, process = self._n_lives, Process(name)
        self._actors.setdefault(name, []).append(process)
        run = self._act if name.startswith("actor") else self._run_client
        self.sim.spawn(process, "main", lambda: run(name, nonce, process), delay_s=delay_s)

    # -- the learner --

    def _learn(self, process: Process) -> None:
        """The learner's main thread: what `Trainer` does with its actors."""
        scenario = self.scenario
        actors = self._make_actors()
        checkpoint = self._checkpoint
        learnt = _Learnt()
        if checkpoint is not None:
            learnt = checkpoint.learnt.copy()
            actors.load_state(json.loads(checkpoint.actors))
        self.learnt = learnt
        rng = random.Random(self.sim.choices.random.random())
        actors.start()
        writer: threading.Thread | None = None
        # Those whose results have come, by the version.
        evaluated: set[int] = set()
        while learnt.n_updates < scenario.n_updates or self._somebody_starves():
            self._take_batch(actors, learnt)
            time.sleep(rng.choice(_LEARNS_S))
            learnt.n_updates += 1
            actors.broadcast_updated_policy(_STATE)
            if scenario.n_clients:
                self._evaluate(actors, evaluated, learnt.n_updates)
            if learnt.n_updates % scenario.checkpoint_every == 0 and (writer is None or not writer.is_alive()):
                writer = self._save(actors, learnt.copy(), process)
        if writer is not None:
            writer.join()
        # The last one, so that a learner that is killed while it ends does not begin again.
        self._save(actors, learnt.copy(), process).join()
        self._has_trained = True
        actors.stop()
        while (piece := actors.poll_slice(1 << 20)) is not None or actors.queue_size:
            if piece is not None:
                self.left_over.append(self._piece(piece))
        self.n_stale += actors.stale_trajectories
        self.is_over = True

    def _evaluate(self, actors: RemoteDistributedActors, evaluated: set[int], n_updates: int) -> None:
        """Has the newest policy evaluated, and takes the results that have come."""
        actors.evaluate_newest(n_updates)
        for result in actors.take_evaluations():
            version = result.policy.version
            if version in evaluated:
                raise ScheduleError(f"version {version} was evaluated twice")
            if result.evaluation.mean != version:
                raise ScheduleError(f"version {version} has the return of version {result.evaluation.mean}")
            evaluated.add(version)

    def _somebody_starves(self) -> bool:
        """Returns whether training goes on for somebody who was not served since the last fault.

        Raises:
            ScheduleError: That has taken too long.
        """
        is_slow = any(fault.kind == "slow a connection" for fault in self.scenario.faults)
        is_slow = is_slow or self.disk.sync_s == _SLOWEST_SYNC_S
        # Actors on a slow link, or behind the slowest disk, may starve: their rollouts come too late, as documented.
        # Actors that have left after the end do not starve.
        if self._has_trained or (is_slow and self.scenario.setting in {"lag", "on_policy"}):
            return False
        starving = sorted(set(self._actors) - self._ended - self._served)
        if starving and self.sim.now - self._last_fault[1] > _SERVED_WITHIN_S:
            raise ScheduleError(f"{starving} starve: nothing of theirs was taken since the last fault")
        return bool(starving)

    def _make_actors(self) -> RemoteDistributedActors:
        scenario = self.scenario
        durable = None
        if scenario.is_durable:
            assert self._folder is not None
            durable = DurableRollouts(self._folder / "log", max_bytes=1 << 30, ask_for_checkpoint=lambda: None)
            setattr(segments, "os", self.disk.as_os())  # noqa: B010 - it is a module
        return RemoteDistributedActors(
            POLICY,
            1,
            scenario.batch_size,
            scenario.factor,
            envs_per_actor=scenario.envs_per_actor,
            serving=ServingOptions(
                addresses=(LEARNER,),
                on_policy=scenario.setting == "on_policy",
                bounded_staleness=scenario.setting == "bounded",
                max_policy_lag=_MAX_LAG if scenario.setting == "lag" else None,
                deterministic=scenario.setting == "in_step",
                durable=durable,
                evaluations=Evaluations(EvaluationPlan(n_episodes=1, seed=0)) if scenario.n_clients else None,
            ),
        )

    def _take_batch(self, actors: RemoteDistributedActors, learnt: _Learnt) -> None:
        scenario = self.scenario
        names, pieces = [], []
        n_left = scenario.batch_size
        while n_left:
            piece = actors.next_slice(n_left, enough=n_left)
            n_left -= piece.n_trajectories
            pieces.append(self._piece(piece))
            lag = actors.policy_version - piece.rollout.policy_version
            most = {"on_policy": 0, "in_step": 0, "lag": _MAX_LAG}.get(scenario.setting, math.inf)
            if lag > most:
                raise ScheduleError(f"{piece.name} is {lag} versions old; at most {most} are documented")
            names.append(piece.name)
        learnt.pieces += pieces
        actors.covered(names)

    def _piece(self, piece: RolloutSlice) -> Piece:
        """Returns which trajectories these are; they must be as they were played."""
        rollout = piece.rollout
        number = int(rollout.reward[0, piece.start])
        if not (rollout.reward == number).all() or number >= len(self._played):
            raise ScheduleError(f"{piece.name} has other numbers than were played: {rollout.reward}")
        life, sequence, _ = self._played[number]
        if rollout.sequence != sequence:
            raise ScheduleError(f"{piece.name} is rollout {sequence} of {life.process}")
        self._note_served(number)
        return number, piece.start, piece.stop

    def _note_served(self, number: int) -> None:
        life, _, begun = self._played[number]
        if begun > self._last_fault[0]:
            self._served.add(life.process.name)

    def _save(self, actors: RemoteDistributedActors, learnt: _Learnt, process: Process) -> threading.Thread:
        """Writes a checkpoint in a thread, as `TrainingCheckpoints` does."""
        state = json.dumps(actors.state())

        def write() -> None:
            time.sleep(0.01)
            if process is self.learner:
                self._checkpoint = _Checkpoint(learnt, state)
                self.sim.pause()
                actors.saved(json.loads(state))

        thread = threading.Thread(target=write, name="checkpoint")
        thread.start()
        return thread

    # -- relays and actors --

    def _relay(self, name: str) -> None:
        number = int(name.rpartition("-")[2])
        relay = RollcastRelay(
            f"127.0.0.1:{5001 + number}",
            [LEARNER],
            name,
            connect_timeout_s=_PATIENCE_S,
            reconnect_timeout_s=_PATIENCE_S,
        )
        relay.start()
        try:
            relay.run()
        except LearnerUnreachableError:
            if not self.is_over:
                raise
        finally:
            relay.close()

    def _addresses(self, name: str) -> str:
        number = int(name.rpartition("-")[2])
        relays = [f"127.0.0.1:{5001 + i}" for i in range(self.scenario.n_relays)]
        ways = [relays[(i + number) % len(relays)] for i in range(len(relays))]
        return ",".join([*ways, LEARNER] if self.scenario.knows_learner or not ways else ways)

    def _act(self, name: str, nonce: int, process: Process) -> None:
        """An actor's main thread: what `act_until_stopped` does, with rollouts out of thin air."""
        offer = JoinOffer(
            actor_id=name, process_nonce=nonce, spaces=SPACES, n_envs=0, network="auto", software_version="1"
        )
        connection = LearnerConnection(
            self._addresses(name), offer, connect_timeout_s=_PATIENCE_S, reconnect_timeout_s=_PATIENCE_S
        )
        self._run_connected(name, process, connection, lambda: self._play(connection, process, random.Random(nonce)))

    def _send_nothing(self, name: str) -> None:
        """A hostile actor's main thread: it comes again whenever its connection ends, for whatever reason."""
        offer = JoinOffer(
            actor_id=name,
            process_nonce=1,
            spaces=SPACES,
            n_envs=self.scenario.batch_size,
            network="auto",
            software_version="1",
        )
        while not self.is_over:
            connection = LearnerConnection(self._addresses(name), offer, reconnect_timeout_s=_PATIENCE_S)
            with contextlib.suppress(RollcastError):
                connection.join()
                while not connection.ended:
                    time.sleep(1.0)
            connection.close()

    def _run_client(self, name: str, nonce: int, process: Process) -> None:
        """An evaluator's main thread, with episodes out of thin air."""
        offer = JoinOffer(
            actor_id=name,
            process_nonce=nonce,
            spaces=SPACES,
            n_envs=0,
            network="auto",
            software_version="1",
            role=ActorRole.EVALUATE,
        )
        connection = EvaluatorConnection(
            self._addresses(name), offer, connect_timeout_s=_PATIENCE_S, reconnect_timeout_s=_PATIENCE_S
        )

        def evaluate() -> None:
            rng = random.Random(nonce)
            connection.join()
            self._joined.add(process)
            while not connection.ended:
                begun = self.sim.n_steps
                if (given := connection.wait_for_policy(1.0)) is None:
                    continue
                time.sleep(rng.choice(PLAYS_S))
                played = PlayedEpisodes(
                    policy_version=given.version, returns=(float(given.version),), lengths=(1,), seconds=0.1
                )
                if connection.report(given, played) and begun > self._last_fault[0]:
                    self._served.add(name)

        self._run_connected(name, process, connection, evaluate)

    def _run_connected(
        self, name: str, process: Process, connection: LearnerConnection | EvaluatorConnection, run: Callable[[], None]
    ) -> None:
        """Runs what a process does with its connection, to the end of training or its own."""
        try:
            run()
        except TrainingEndedError:
            pass
        except ActorReplacedError:
            self._actors[name].remove(process)
            if not self._actors[name]:
                if name not in self._killed_unheard:
                    raise
                # The Join of a dead process has come after this one's, by a slow relay. Whoever looks after the actor
                # starts it again.
                self._start_actor(name, 0.1)
            return
        except RefusedError:
            if self.scenario.setting != "in_step" or not self.n_kills:
                raise
            # Whoever looks after the actor starts it again.
            self._actors[name].remove(process)
            if not self._actors[name]:
                self._start_actor(name, 0.1)
            return
        except LearnerUnreachableError:
            # It was away for longer than the learner lingers to tell it of the end.
            if not self.is_over:
                raise
        finally:
            connection.close()
        self._ended.add(name)

    def _play(self, connection: LearnerConnection, process: Process, rng: random.Random) -> None:
        agreement = connection.join()
        self._joined.add(process)
        sequence = agreement.acknowledged_sequence + 1
        life = Life(process, first_sequence=sequence)
        self.lives.append(life)
        while not connection.ended:
            if connection.wait_for_credit(sequence, 1.0):
                begun, newest = self.sim.n_steps, connection.take_policy()
                assert newest is not None
                time.sleep(rng.choice(PLAYS_S))
                number = len(self._played)
                self._played.append((life, sequence, begun))
                life.numbers.append(number)
                connection.send(_rollout(agreement, sequence, newest[0], number))
                sequence += 1
                # One that the learner asks for at least, and one ahead: see docs/reference/protocol.md.
                if (n_under_way := connection.drain(0.0)) > 2:
                    raise ScheduleError(f"{n_under_way} rollouts of {process} are under way; at most 2 are documented")
            life.n_acknowledged = len(life.numbers) - connection.drain(0.0)
        life.n_acknowledged = len(life.numbers) - connection.drain(2.0)

    # -- faults --

    def _strike(self, fault: Fault) -> None:
        """Has a fault happen."""
        if self.is_over:
            return
        self._last_fault, self._served = (self.sim.n_steps, self.sim.now), set()
        number = fault.number
        back_s = _BACK_S[number % len(_BACK_S)]
        actors = sorted(self._actors)
        if fault.kind == "kill an actor":
            name = actors[number % len(actors)]
            if name not in self._ended:
                killed = self._actors[name].pop()
                if killed not in self._joined:
                    self._killed_unheard.add(name)
                self._kill(killed, number)
                self._start_actor(name, back_s)
        elif fault.kind == "replace an actor":
            # The old process lives on, and hears that it was replaced.
            name = actors[number % len(actors)]
            if name not in self._ended:
                self._start_actor(name, 0.0)
        elif fault.kind == "kill the learner":
            self.n_kills += 1
            self._kill(self.learner, number)
            if self.scenario.setting != "in_step":
                self._start_learner(back_s)
            elif self._has_trained:
                self.is_over = True
            else:
                self._checkpoint = None  # such runs cannot be resumed: another one begins
                self._start_learner(back_s)
        elif fault.kind == "kill a relay":
            relay = sorted(self._relays)[number % len(self._relays)]
            self._kill(self._relays[relay], number)
            self._start_relay(relay, back_s)
        elif fault.kind == "slow the disk":
            self.disk.sync_s = (0.3, 2.0, _SLOWEST_SYNC_S)[number % 3]
        elif fault.kind == "fill the disk":
            self.disk.full_until = self.sim.now + (1.0, 30.0)[number % 2]
        elif fault.kind == "freeze a process":
            processes = [self.learner, *(one[-1] for one in self._actors.values()), *self._relays.values()]
            processes[number % len(processes)].frozen_until = self.sim.now + (0.5, 4.0, 20.0)[number % 3]
        else:
            self._strike_connection(fault)

    def _strike_connection(self, fault: Fault) -> None:
        connections: list[Connection] = [one for one in self.network.connections if not one.is_closed]
        if not connections:
            return
        struck = connections[fault.number % len(connections)]
        if fault.kind == "cut a connection":
            struck.cut()
        elif fault.kind == "silence a connection":
            struck.cut(client_after_s=KEEPALIVE_S * (1 + fault.number % 2) / 2, server_after_s=KEEPALIVE_S)
        elif fault.kind == "slow a connection":
            # A Join, which has 5 s, goes there and back; a relay's connection stays slow, an actor's next one is not.
            slow_s = 3.0 if self.scenario.knows_learner else 2.0
            struck.latency_s = (0.05, 0.3, slow_s)[fault.number % 3]
        else:
            struck.n_to_drop += 1

    def _kill(self, process: Process, number: int) -> None:
        machine_fails = number % 4 == 0
        self.sim.kill(process)
        self.network.end_process(process, is_silent=machine_fails)
        if process is self.learner:
            self.disk.end_process(loses_unsynced=machine_fails)

    # -- what must be true --

    def is_finished(self) -> bool:
        """Returns whether training has ended, and every actor has heard of it."""
        return self.is_over and len(self._ended) == self.scenario.n_actors + self.scenario.n_clients

    def check(self) -> None:
        """Checks what was learnt against what was acknowledged, at the end.

        Raises:
            ScheduleError: Something was lost or used twice.
        """
        used = [*self.learnt.pieces, *self.left_over]
        seen = Counter((number, trajectory) for number, start, stop in used for trajectory in range(start, stop))
        twice = [self._name(*each) for each, n in seen.items() if n > 1]
        if twice:
            raise ScheduleError(f"used twice: {twice}")
        last: dict[int, int] = {}
        for number, *_ in used:
            life = id(self._played[number][0])
            if number < last.get(life, 0):
                raise ScheduleError(f"{self._name(number, 0)} was used after {self._name(last[life], 0)}")
            last[life] = number
        drops_stale = self.scenario.setting in {"lag", "on_policy"}
        if self.n_kills and (not self.scenario.is_durable or drops_stale):
            # What was acknowledged since the checkpoint is gone, as documented; or the count of what was stale.
            return
        lost = [
            self._name(number, trajectory)
            for life in self.lives
            for number in life.numbers[: life.n_acknowledged]
            for trajectory in range(self.scenario.envs_per_actor)
            if not seen[number, trajectory]
        ]
        # In step, what came for a later round than the last waits for its turn.
        n_waiting = self.scenario.n_actors * self.scenario.envs_per_actor * (self.scenario.setting == "in_step")
        if len(lost) > self.n_stale + n_waiting:
            raise ScheduleError(f"acknowledged and lost: {lost}; {self.n_stale} were stale")

    def _name(self, number: int, trajectory: int) -> str:
        life, sequence, _ = self._played[number]
        return f"trajectory {trajectory} of rollout {sequence} of {life.process} ({self.lives.index(life)})"


def _rollout(agreement: JoinAgreement, sequence: int, version: int, number: int) -> Rollout:
    n_envs = agreement.n_envs
    return build_rollout(
        observation={"": np.zeros((1, n_envs, 1), np.float32)},
        action=np.zeros((1, n_envs), np.int64),
        last_observation={"": np.zeros((n_envs, 1), np.float32)},
        reward=np.full((1, n_envs), number, np.float32),
        actor_id=agreement.actor_id,
        incarnation=agreement.incarnation,
        sequence=sequence,
        policy_version=version,
    )


def run_schedule(
    scenario: Scenario, seed: int, switches: dict[int, int] | None = None, *, of: type[World] = World
) -> Outcome:
    """Runs a schedule.

    Args:
        scenario: What is played.
        seed: Decides who goes on.
        switches: Decides it instead, from an earlier run.
        of: The kind of world.
    """
    choices = Choices(seed, scenario.rate, switches)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(_folder())) if scenario.is_durable else None
        world = of(scenario, choices, folder)
        stack.enter_context(simulated(world.sim, seed))
        failure = ""
        try:
            world.begin()
            world.sim.run(world.is_finished)
            world.check()
        except ScheduleError as error:
            failure = str(error)
            if error.__cause__ is not None:
                failure += "\n" + "".join(traceback.format_exception(error.__cause__))
    return Outcome(failure, world.sim.n_steps, choices.made, choices.sizes)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
