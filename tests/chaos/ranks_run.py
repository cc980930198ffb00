"""Two ranks of a learner, which an engine starts again one by one; their actors, the faults, and the report."""

import contextlib
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.assault import Assault
from tests.chaos.bookkeeping import bookkeeping_spaces
from tests.chaos.disk import SmallDisk
from tests.chaos.learner_faults import LearnerKind, Scene
from tests.chaos.learner_process import LearnerProcess
from tests.chaos.learner_run import await_two_checkpoints, learner_options
from tests.chaos.policies import find_wrong, read_policies
from tests.chaos.processes import SupervisedActor
from tests.chaos.proxy import Proxy
from tests.chaos.ranks import RankLineages, compare_sessions, read_sessions
from tests.chaos.report import Report
from tests.chaos.run import (
    RECOVERY_TIMEOUT_S,
    ActorAssault,
    LearnerAssault,
    acknowledged_to,
    encoding_of,
    end_all,
    join_all,
    share,
)
from tests.chaos.run_files import rollouts_in_log
from tests.processes import free_port, free_ports

N_RANKS: Final = 2
_KINDS: Final[tuple[LearnerKind, ...]] = ("learner_kill", "learner_term", "learner_freeze", "kill_saving")
_ENVS_PER_ACTOR: Final = 3
_STEP_S: Final = 0.005
# Below the longest freezes, which the other rank does not wait for.
_OPTIONS: Final = {"--durable": "", "--ranks.timeout-s": 10, "--ranks.data-timeout-s": 1, "--ranks.check-updates": 1}
# A rank ends by itself when it has lost the other, or when the other was told to end.
_ENDS: Final = (1, 0)


def run_rank_chaos(
    folder: Path,
    *,
    n_rank_faults: int,
    n_actor_faults: int,
    n_actors: int = 4,
    seed: int = 0,
    short: bool = False,
    only: Sequence[LearnerKind] = _KINDS,
) -> Report:
    """Injects faults into the ranks of a durable learner and into their actors, and checks the results.

    Args:
        folder: The folder for logs, ledgers and the run; it has none yet.
        n_rank_faults: The number of faults of ranks, shared out among the ranks.
        n_actor_faults: The number of faults of actors and their connections, shared out among the actors.
        seed: The same seed draws the same faults; their times depend on the machine.
        short: Leaves out faults that take long to recover from.
        only: The kinds of the ranks' faults.

    Returns:
        The report of the suite.
    """
    rng, began = random.Random(seed), time.monotonic()
    report = Report("ranks", seed)
    port, run_dir = free_ports(N_RANKS), folder / "run"
    options = learner_options("impala", seed) | _OPTIONS | {"--address": f"127.0.0.1:{port}"}
    place = {"WORLD_SIZE": str(N_RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        ranks = [
            LearnerProcess(
                folder,
                run_dir,
                options,
                place | {"RANK": str(rank)},
                name=f"rank-{rank}",
                port=port + rank,
                may_end_with=_ENDS,
            )
            for rank in range(N_RANKS)
        ]
        stack.callback(_close, ranks)
        lineages = RankLineages([rank.record for rank in ranks])
        stack.callback(lineages.close)
        report.entries = lineages.entries
        actors: list[ActorAssault] = []
        for i, n in enumerate(share(n_actor_faults, n_actors)):
            proxy = Proxy(port + i % N_RANKS, rng.randrange(2**32))
            actor = SupervisedActor(
                f"chaos-{i}",
                proxy.address,
                folder,
                n_envs=_ENVS_PER_ACTOR,
                step_s=_STEP_S,
                policy_encoding=encoding_of(i),
            )
            assault = ActorAssault(
                actor,
                proxy,
                count=lineages.count,
                books=lineages,
                n_faults=n,
                rng=rng,
                short=True,
            )
            stack.callback(assault.end)
            actors.append(assault)
        assaults: list[Assault] = [*actors]
        scenes = []
        for rank, lineage, n in zip(ranks, lineages.of, share(n_rank_faults, N_RANKS), strict=True):
            scene = Scene(rank, lineage, SmallDisk(folder / "disk"), {}, n_actors, durable=True, acknowledged=dict)
            assault = LearnerAssault(scene, books=lineages, n_faults=n, rng=rng, short=short, only=only)
            stack.callback(assault.end)
            scenes.append(scene)
            assaults.append(assault)
        if await_two_checkpoints(lineages, run_dir, [actor.victim for actor in actors], report):
            _dial_home(actors[:N_RANKS], ranks, lineages)
            for assault in assaults:
                assault.start()
            join_all(assaults, RECOVERY_TIMEOUT_S + 30.0 * (n_rank_faults + n_actor_faults))
        report.recoveries = [recovery for assault in assaults for recovery in assault.recoveries]
        end_all(assaults)
        _close(ranks)
        lineages.close()
        for number, lineage in enumerate(lineages.of):
            lineage.enter_logged(rollouts_in_log(run_dir, bookkeeping_spaces(), number))
    acknowledged = acknowledged_to(actors)
    lineages.check(acknowledged)
    cast: dict[int, set[str]] = {}
    for lineage in lineages.of:
        for version, digests in lineage.cast.items():
            cast.setdefault(version, set()).update(digests)
    for assault in actors:
        lineages.entries.corrupt += find_wrong(assault.victim, read_policies(assault.actor.policies), cast)
    different, n_compared = compare_sessions([read_sessions(rank.record) for rank in ranks])
    report.n_rollouts = lineages.n_taken
    report.n_acknowledged = sum(sum(sequences.values()) for sequences in acknowledged.values())
    report.hangs = [*report.hangs, *(hang for assault in assaults for hang in assault.hangs)]
    report.failures = [*different, *(failure for part in [*scenes, *ranks] for failure in part.failures)]
    report.n_starts = sum(rank.n_starts for rank in ranks) + sum(assault.actor.n_starts for assault in actors)
    report.notes = {
        "lives of the ranks": sum(rank.n_starts for rank in ranks),
        "rolled back": sum(lineage.n_rolled_back for lineage in lineages.of),
        "policies of both ranks": n_compared,
    }
    report.seconds = time.monotonic() - began
    return report


def _dial_home(actors: Sequence[ActorAssault], ranks: Sequence[LearnerProcess], lineages: RankLineages) -> None:
    """Has proxies lead to the ranks that have their actors; the connections of other actors may lead past theirs."""
    for assault in actors:
        counts = [lineage.count(assault.victim) for lineage in lineages.of]
        assault.proxy.learner_port = ranks[counts.index(max(counts))].port


def _close(ranks: Sequence[LearnerProcess]) -> None:
    """Ends all ranks at the same time: each waits for the others."""
    threads = [threading.Thread(target=rank.close, daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RECOVERY_TIMEOUT_S)
