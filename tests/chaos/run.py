"""Actors, their proxies, a learner in this process, the faults, and the report."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicyEncodingName
from tests.chaos.acting import read_acknowledgements
from tests.chaos.assault import Assault, Books
from tests.chaos.faults import KINDS_OF_CLIENTS, Kind, draw_faults
from tests.chaos.games import n_lives, read_given
from tests.chaos.learner_faults import LearnerKind, Scene, draw_learner_faults
from tests.chaos.learners import LEARNERS
from tests.chaos.lineage import Lineage
from tests.chaos.policies import find_wrong, read_policies
from tests.chaos.processes import SupervisedActor, SupervisedClient, SupervisedProcess
from tests.chaos.proxy import Proxy, Ways
from tests.chaos.ranks import RankLineages
from tests.chaos.report import Report

# At a fault, credit may have two rollouts under way, and four may be in the queue and not in the ledger yet:
# the seventh was sent after it.
NEW_ROLLOUTS = 7
# Beyond the longest freeze of 65 s. Keepalive finds a dead connection after 9 s, and a process starts within seconds
# where it has the machine to itself.
RECOVERY_TIMEOUT_S = 180.0
# The smallest first: a suite of one actor has it.
_ENCODINGS: Final[tuple[PolicyEncodingName, ...]] = ("delta", "bfloat16", "full")


class ProcessAssault(Assault):
    """An assault on one process and its connections.

    Args:
        count: Counts the rollouts by which the process shows that it is there.
        books: Tells when `count` may have changed.
        rng: Draws the faults, and the pauses between them.
        short: Leaves out faults that take long to recover from.
        only: The kinds of faults; none: all.
    """

    def __init__(
        self,
        process: SupervisedProcess,
        proxy: Proxy | Ways,
        *,
        count: Callable[[], int],
        books: Books,
        n_faults: int,
        rng: random.Random,
        short: bool,
        only: Sequence[Kind] = (),
    ) -> None:
        super().__init__(
            process.name,
            draw_faults(n_faults, rng, short=short, only=only),
            inject=lambda fault, stop: fault.inject(process, proxy, stop),
            count=count,
            books=books,
            n_new=NEW_ROLLOUTS,
            timeout_s=RECOVERY_TIMEOUT_S,
            rng=random.Random(rng.random()),
        )
        self.process, self.proxy = process, proxy

    def end(self) -> None:
        """Ends the faults, the process and its proxies. Idempotent."""
        super().end()
        if not self.process.close():
            self.hangs.append(f"{self.victim}: SIGTERM did not end it; see {self.process.log}")
        self.proxy.close()


class ActorAssault(ProcessAssault):
    """An assault on one actor and its connection; see `ProcessAssault`.

    Args:
        count: Counts the rollouts that have come from an actor.
    """

    def __init__(
        self, actor: SupervisedActor, proxy: Proxy | Ways, *, count: Callable[[str], int], **options: Any
    ) -> None:
        super().__init__(actor, proxy, count=lambda: count(actor.actor_id), **options)
        self.actor = actor


class ClientAssault(ProcessAssault):
    """An assault on one client of an actor, whose environments dial in, and on its connection; see `ProcessAssault`.

    Args:
        count: Counts the rollouts that have steps of a client, by its number.
    """

    def __init__(
        self,
        client: SupervisedClient,
        proxy: Proxy,
        *,
        count: Callable[[int], int],
        short: bool,
        **options: Any,
    ) -> None:
        kinds = [kind for kind in KINDS_OF_CLIENTS if not (short and kind == "black_hole")]
        super().__init__(client, proxy, count=lambda: count(client.number), short=short, only=kinds, **options)
        self.client = client

    def unexplained(self, n_others: int) -> list[str]:
        """Returns the lives that neither a fault of this client explains nor one of others that it depends on.

        Args:
            n_others: The faults of its actor and of the learner.
        """
        lives = n_lives(read_given(self.client.given))
        n_explained = 1 + len(self.recoveries) + n_others
        if lives <= n_explained:
            return []
        return [f"{self.victim} has begun {lives} lives; faults explain {n_explained}"]


class LearnerAssault(Assault):
    """An assault on one learner, its files, its disk and the clocks.

    Args:
        scene: The learner, and what else its faults may hit.
        books: Counts the rollouts that learners have taken.
        n_faults: The number of faults.
        rng: Draws the faults, and the pauses between them.
        short: Leaves out faults that take long to recover from.
        only: The kinds of faults; none: all.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        books: Lineage | RankLineages,
        n_faults: int,
        rng: random.Random,
        short: bool,
        only: Sequence[LearnerKind] = (),
    ) -> None:
        super().__init__(
            scene.learner.name,
            draw_learner_faults(n_faults, rng, short=short, only=only),
            inject=lambda fault, stop: fault.inject(scene, stop),
            count=lambda: books.n_taken,
            books=books,
            n_new=NEW_ROLLOUTS,
            timeout_s=RECOVERY_TIMEOUT_S,
            rng=random.Random(rng.random()),
        )


def encoding_of(i: int) -> PolicyEncodingName:
    """Returns the form in which an actor asks for policies, by its number: all forms come up."""
    return _ENCODINGS[i % len(_ENCODINGS)]


def share(n_faults: int, n_victims: int) -> list[int]:
    """Shares faults out evenly among victims; the first victims get the rest."""
    return [n_faults // n_victims + (i < n_faults % n_victims) for i in range(n_victims)]


def end_all(assaults: Sequence[Assault]) -> None:
    """Ends all assaults at the same time, since each takes as long as its process."""
    threads = [threading.Thread(target=assault.end, daemon=True) for assault in assaults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RECOVERY_TIMEOUT_S)


def acknowledged_to(assaults: Sequence[ActorAssault]) -> Mapping[str, Mapping[int, int]]:
    """Returns the last sequence that was acknowledged, by actor and incarnation."""
    return {a.victim: read_acknowledgements(a.actor.acknowledgements) for a in assaults}


def join_all(assaults: Sequence[Assault], timeout_s: float) -> None:
    """Waits until all assaults have injected their faults."""
    deadline = time.monotonic() + timeout_s
    for assault in assaults:
        assault.join(max(0.0, deadline - time.monotonic()))


def run_chaos(
    folder: Path,
    *,
    learner: Literal["queue", "replay", "frames"],
    n_faults: int,
    n_actors: int = 4,
    seed: int = 0,
    short: bool = False,
    only: Sequence[Kind] = (),
) -> Report:
    """Injects faults into actors and their connections, and checks every rollout.

    Args:
        folder: The folder for the actors' logs and acknowledgements; it has none yet.
        learner: The target of the rollouts.
        n_faults: The number of faults, shared out among the actors.
        seed: The same seed draws the same faults for the same actors; their times depend on the machine.
        short: Leaves out faults that take long to recover from.
        only: The kinds of faults; none: all.

    Returns:
        The report of the suite.
    """
    rng, began = random.Random(seed), time.monotonic()
    report = Report(learner, seed)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(LEARNERS[learner](seed))
        ledger = serving.ledger
        report.entries = ledger.entries
        assaults = []
        for i, n in enumerate(share(n_faults, n_actors)):
            proxy = Proxy(serving.port, rng.randrange(2**32))
            assault = ActorAssault(
                SupervisedActor(f"chaos-{i}", proxy.address, folder, policy_encoding=encoding_of(i)),
                proxy,
                count=ledger.count,
                books=ledger,
                n_faults=n,
                rng=rng,
                short=short,
                only=only,
            )
            stack.callback(assault.end)
            assaults.append(assault)
        for assault in assaults:
            assault.start()
        join_all(assaults, RECOVERY_TIMEOUT_S * (2 + n_faults // n_actors))
        report.recoveries = [recovery for assault in assaults for recovery in assault.recoveries]
        end_all(assaults)
        acknowledged = acknowledged_to(assaults)
        report.notes["sent again and dropped"] = serving.actors.duplicate_rollouts
        report.notes["refused"] = serving.actors.rejected_rollouts
        # stops the learner: what was accepted is in the ledger then
        stack.pop_all().close()
    for actor_id, sequences in acknowledged.items():
        ledger.check_acknowledged(actor_id, sequences)
    given = {assault.victim: read_policies(assault.actor.policies) for assault in assaults}
    cast = {version: {digest} for version, digest in serving.cast.items()}
    for actor_id, policies in given.items():
        report.entries.corrupt += find_wrong(actor_id, policies, cast)
    for encoding in PolicyEncoding:
        n_given = sum(one.encoding is encoding for policies in given.values() for one in policies)
        report.notes[f"policies, {encoding.name.lower()}"] = n_given
    report.n_rollouts = ledger.n_rollouts
    report.n_acknowledged = sum(sum(sequences.values()) for sequences in acknowledged.values())
    report.hangs = [hang for assault in assaults for hang in assault.hangs]
    if serving.failure is not None:
        report.failures.append(f"the trainer's thread ended with {serving.failure!r}")
    report.n_starts = sum(assault.actor.n_starts for assault in assaults)
    report.seconds = time.monotonic() - began
    return report
