"""A learner in a process of its own, which trains, dies and goes on; its actors, the faults, and the report."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from tests.chaos.bookkeeping import bookkeeping_spaces
from tests.chaos.clock import Clock, remove_traces
from tests.chaos.disk import SmallDisk
from tests.chaos.games import GAMES, read_given
from tests.chaos.learner_faults import LEARNER_KINDS, LOG_KINDS, LearnerKind, Scene
from tests.chaos.learner_process import LearnerProcess
from tests.chaos.lineage import Lineage
from tests.chaos.policies import find_wrong, read_policies
from tests.chaos.processes import SupervisedActor, SupervisedClient, SupervisedRelay
from tests.chaos.proxy import Proxy, Ways
from tests.chaos.ranks import RankLineages
from tests.chaos.report import Report
from tests.chaos.run import (
    RECOVERY_TIMEOUT_S,
    ActorAssault,
    ClientAssault,
    LearnerAssault,
    ProcessAssault,
    acknowledged_to,
    encoding_of,
    end_all,
    join_all,
    share,
)
from tests.chaos.run_files import checkpoints, rollouts_in_log, steps_in_buffer
from tests.processes import free_port

Algorithm = Literal["impala", "sac"]

N_ROLLOUT_STEPS: Final = 8
# Three do not divide a batch of eight: rollouts are cut in two.
_ENVS_PER_ACTOR: Final = 3
_STEP_S: Final = 0.005
_START_TIMEOUT_S: Final = 300.0
_LOOK_S: Final = 0.05
_CLOCKS: Final[tuple[LearnerKind, ...]] = ("learner_clock", "actors_clock")
_KINDS: Final = tuple(kind for kind in LEARNER_KINDS if kind not in _CLOCKS)

_COMMON: Final[Mapping[str, object]] = {
    "--env-id": "tests.chaos.bookkeeping:BookkeepingEnv",
    "--n-rollout-steps": N_ROLLOUT_STEPS,
    "--envs-per-actor": _ENVS_PER_ACTOR,
    "--hidden-sizes": "[32]",
    "--total-steps": 10**9,
    "--stop-return": 1e9,
    "--checkpoint-interval-s": 1,
    "--log-interval-s": 0.5,
    "--torch-threads": 1,
}
# The policy does not matter here; rewards of thousands need a low rate. IMPALA's has all that a rollout may bring.
_OPTIONS: Final[dict[Algorithm, Mapping[str, object]]] = {
    "impala": {
        "--batch-size": 8,
        "--impala.learning-rate": 1e-7,
        "--recurrence": "lstm",
        "--recurrent-size": 4,
        "--frame-stack": 3,
        "--normalize-observations": "",
    },
    "sac": {
        "--batch-size": 32,
        "--sac.policy-learning-rate": 1e-7,
        "--sac.critic-learning-rate": 1e-7,
        "--replay.capacity": 1_000_000,
        "--replay.min-size": 200,
        "--replay.samples-per-insert": 8,
    },
}


def run_learner_chaos(
    folder: Path,
    *,
    algorithm: Algorithm,
    durable: bool = False,
    n_learner_faults: int,
    n_actor_faults: int,
    n_actors: int = 3,
    n_clients: int = 0,
    n_client_faults: int = 0,
    n_relays: int = 0,
    n_relay_faults: int = 0,
    seed: int = 0,
    short: bool = False,
    only: Sequence[LearnerKind] = (),
) -> Report:
    """Injects faults into a learner under load, its actors, and their clients or relays, and checks the results.

    Args:
        folder: The folder for logs, ledgers and the run; it has none yet.
        n_learner_faults: The number of faults of the learner, its files, its disk and the clocks.
        n_actor_faults: The number of faults of actors and their connections, shared out among the actors.
        n_clients: The number of clients of each actor, whose environments dial in; 0: actors step their own.
        n_client_faults: The number of faults of clients and their connections, shared out among the clients.
        n_relays: The number of relays between the learner and its actors, of which there are more; see `_ports`.
        n_relay_faults: The number of faults of relays and their connections, shared out among the relays.
        seed: The same seed draws the same faults; their times depend on the machine.
        short: Leaves out faults that take long to recover from.
        only: The kinds of the learner's faults; none: all but those of clocks.

    Returns:
        The report of the suite.
    """
    rng, began = random.Random(seed), time.monotonic()
    report = Report(algorithm, seed)
    n_envs = sum(map(_envs_of_client, range(n_clients))) or _ENVS_PER_ACTOR
    clocks = {name: Clock(folder / name) for name in _CLOCKS}
    with contextlib.ExitStack() as stack:
        stack.callback(remove_traces)
        disk = stack.enter_context(SmallDisk(folder / "disk"))
        impossible = {*(() if disk.is_mounted else ("disk_full",)), *(() if durable else LOG_KINDS)}
        kinds = [kind for kind in only or _KINDS if kind not in impossible]
        options = learner_options(algorithm, seed) | {"--envs-per-actor": n_envs}
        if durable:
            options["--durable"] = ""
        # libfaketime takes a lock and reads its settings at every look at a clock: as much time as all of training
        variables = {name: clock.variables() if name in kinds else {} for name, clock in clocks.items()}
        learner = LearnerProcess(folder, disk.path / "run", options, variables["learner_clock"])
        stack.callback(learner.close)
        lineage = Lineage(learner.record, durable=durable)
        stack.callback(lineage.close)
        report.entries = lineage.entries
        actors: list[ActorAssault] = []
        clients: list[ClientAssault] = []
        faults_of_clients = iter(share(n_client_faults, n_actors * n_clients) if n_clients else ())
        relays: list[ProcessAssault] = []
        for i, n in enumerate(share(n_relay_faults, n_relays) if n_relays else ()):
            proxy = Proxy(learner.port, rng.randrange(2**32))
            relay = ProcessAssault(
                SupervisedRelay(i, proxy.address, folder, policy_encoding=encoding_of(i)),
                proxy,
                # the actor that has no other way
                count=lambda name=f"chaos-{i}": lineage.count(name),
                books=lineage,
                n_faults=n,
                rng=rng,
                short=short,
            )
            stack.callback(relay.end)
            relays.append(relay)
        scene = Scene(learner, lineage, disk, clocks, n_actors, durable, lambda: acknowledged_to(actors))
        for i, n in enumerate(share(n_actor_faults, n_actors)):
            ports = _ports(i, learner.port, [relay.process.port for relay in relays])
            proxy = Ways([Proxy(port, rng.randrange(2**32)) for port in ports])
            serves = free_port() if n_clients else None
            actor = SupervisedActor(
                f"{GAMES if n_clients else 'chaos-'}{i}",
                proxy.address,
                folder,
                n_envs=n_envs,
                step_s=_STEP_S,
                policy_encoding=encoding_of(i),
                serves=serves,
                variables=variables["actors_clock"],
            )
            assault = ActorAssault(
                actor,
                proxy,
                count=lineage.count,
                books=lineage,
                n_faults=n,
                rng=rng,
                # a connection that keepalive has to find dead tells nothing new about a learner, but about a relay
                short=short or not n_relays,
            )
            stack.callback(assault.end)
            actors.append(assault)
            for j in range(n_clients if serves is not None else 0):
                line = Proxy(serves, rng.randrange(2**32))
                client = SupervisedClient(len(clients), line.address, folder, n_envs=_envs_of_client(j), step_s=_STEP_S)
                played = ClientAssault(
                    client,
                    line,
                    count=lineage.count_client,
                    books=lineage,
                    n_faults=next(faults_of_clients),
                    rng=rng,
                    short=short,
                )
                stack.callback(played.end)
                clients.append(played)
        trained = LearnerAssault(scene, books=lineage, n_faults=n_learner_faults, rng=rng, short=short, only=kinds)
        stack.callback(trained.end)
        assaults = [trained, *relays, *actors, *clients]
        n_faults = n_learner_faults + n_relay_faults + n_actor_faults + n_client_faults
        if await_two_checkpoints(lineage, learner.run_dir, [assault.victim for assault in actors], report):
            for assault in assaults:
                assault.start()
            join_all(assaults, RECOVERY_TIMEOUT_S + 30.0 * n_faults)
        report.recoveries = [recovery for assault in assaults for recovery in assault.recoveries]
        trained.end()
        # before their clients, whose lives would otherwise end by no fault
        end_all(actors)
        n_lived = [assault.unexplained(n_learner_faults + n_actor_faults) for assault in clients]
        end_all([*clients, *relays])
        acknowledged = acknowledged_to(actors)
        learner.close()
        lineage.close()
        if algorithm == "sac":
            check_buffer(learner.run_dir, lineage)
        if durable:
            lineage.enter_logged(rollouts_in_log(learner.run_dir, bookkeeping_spaces()))
    lineage.check_plays({seed: n for assault in clients for seed, n in read_given(assault.client.given).items()})
    for assault in actors:
        lineage.check_acknowledged(assault.victim, acknowledged[assault.victim])
        report.entries.corrupt += find_wrong(assault.victim, read_policies(assault.actor.policies), lineage.cast)
    report.n_rollouts = lineage.n_taken
    report.n_acknowledged = sum(sum(sequences.values()) for sequences in acknowledged.values())
    report.hangs = [*report.hangs, *(hang for assault in assaults for hang in assault.hangs)]
    report.failures = [*scene.failures, *learner.failures, *itertools.chain(*n_lived)]
    report.failures += [refusal for assault in [*clients, *relays] for refusal in assault.process.refusals]
    report.n_starts = learner.n_starts
    report.n_starts += sum(assault.process.n_starts for assault in [*relays, *actors, *clients])
    report.notes = learner_notes(lineage)
    if clients:
        report.notes["lives of games"] = len(lineage.plays.lives())
    report.seconds = time.monotonic() - began
    return report


def _ports(i: int, learner: int, relays: Sequence[int]) -> Sequence[int]:
    """Returns the ports of an actor's addresses: each relay has one actor with no other way, the rest has all."""
    if not relays:
        return [learner]
    first = i % len(relays)
    return relays[i : i + 1] or [*relays[first:], *relays[:first], learner]


def _envs_of_client(number: int) -> int:
    """Returns the number of environments of an actor's client: one and two, in turn."""
    return 1 + number % 2


def learner_options(algorithm: Algorithm, seed: int) -> dict[str, object]:
    """Returns the options of `rollcast learner`, but for its folder and its address."""
    return {**_COMMON, **_OPTIONS[algorithm], "--algorithm": algorithm, "--seed": seed, "--resume": "auto"}


def learner_notes(lineage: Lineage) -> dict[str, int]:
    """Returns the other counts."""
    return {
        "lives of the learner": lineage.n_lives,
        "trajectories in its line": lineage.n_learnt,
        "rolled back": lineage.n_rolled_back,
        "skipped": lineage.n_skipped,
        "stale": lineage.n_stale,
    }


def await_two_checkpoints(
    lineage: Lineage | RankLineages, run_dir: Path, actor_ids: Sequence[str], report: Report
) -> bool:
    """Waits until two checkpoints know everybody: what comes before the first has nothing to go back to."""
    before: set[Path] | None = None

    def are_there() -> bool:
        nonlocal before
        if before is None and all(map(lineage.count, actor_ids)):
            before = set(checkpoints(run_dir))
        return before is not None and len(set(checkpoints(run_dir)) - before) > 1

    deadline, pause = time.monotonic() + _START_TIMEOUT_S, threading.Event()
    while not are_there():
        if time.monotonic() > deadline:
            report.hangs.append(
                f"the learner: no two checkpoints of all actors {_START_TIMEOUT_S:.0f} s after its start"
            )
            return False
        pause.wait(_LOOK_S)
    return True


def check_buffer(run_dir: Path, lineage: Lineage) -> None:
    """Compares the replay buffer of the last checkpoint with what was learnt."""
    totals, n_wrong = steps_in_buffer(run_dir, bookkeeping_spaces())
    if n_wrong:
        lineage.entries.corrupt.append(f"{n_wrong} steps in the buffer have rewards that are not theirs")
    lineage.check_steps(totals, N_ROLLOUT_STEPS)
