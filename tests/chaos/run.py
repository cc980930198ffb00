"""One run: actors, their proxies, a learner, the faults, and the report."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.chaos.acting import read_acknowledgements
from tests.chaos.faults import Fault, Kind, draw_faults
from tests.chaos.learners import LEARNERS
from tests.chaos.ledger import Ledger
from tests.chaos.processes import SupervisedActor
from tests.chaos.proxy import Proxy
from tests.chaos.report import Recovery, Report

logger = logging.getLogger(__name__)

# When a fault comes, credit may have two rollouts under way, and four may be in the queue and not in the ledger yet:
# the seventh was sent after it.
_NEW_ROLLOUTS = 7
# A process starts within seconds, and keepalive has been seen to find a dead connection after 65 s.
_RECOVERY_TIMEOUT_S = 90.0
_START_TIMEOUT_S = 90.0


class _Assault:
    """One actor, its proxy, and the thread that brings the faults upon them, each after it has recovered from the last.

    Args:
        actor: The actor.
        proxy: Between it and the learner.
        faults: What to do, in this order.
        ledger: Where its rollouts show.
        rng: Of how long it is left alone between two.
    """

    def __init__(
        self, actor: SupervisedActor, proxy: Proxy, faults: list[Fault], ledger: Ledger, rng: random.Random
    ) -> None:
        self.actor, self.proxy = actor, proxy
        self.recoveries: list[Recovery] = []
        self.hangs: list[str] = []
        self._faults, self._ledger, self._rng = faults, ledger, rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chaos-assault-{actor.actor_id}", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits until every fault has been brought and recovered from."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.hangs.append(f"{self.actor.actor_id}: its faults were not through after {timeout_s:.0f} s")

    def end(self) -> None:
        """Ends the faults, the actor and the proxy."""
        self._stop.set()
        self._thread.join(_RECOVERY_TIMEOUT_S)
        if not self.actor.close():
            self.hangs.append(f"{self.actor.actor_id}: SIGTERM did not end it; see {self.actor.log}")
        self.proxy.close()

    def _run(self) -> None:
        if self._await_rollouts(1, _START_TIMEOUT_S) is None:
            self.hangs.append(f"{self.actor.actor_id}: no rollout {_START_TIMEOUT_S:.0f} s after its start")
            return
        for fault in self._faults:
            if self._stop.wait(self._rng.uniform(0.0, 0.5)):
                return
            fault.inject(self.actor, self.proxy, self._stop)
            seconds = self._await_rollouts(_NEW_ROLLOUTS, _RECOVERY_TIMEOUT_S)
            if self._stop.is_set():
                return
            logger.info("%s: %s, recovered after %s s", self.actor.actor_id, fault, seconds)
            self.recoveries.append(Recovery(self.actor.actor_id, fault, seconds))
            if seconds is None:
                self.hangs.append(f"{self.actor.actor_id}: {fault}, and no rollout for {_RECOVERY_TIMEOUT_S:.0f} s")
                return

    def _await_rollouts(self, n_rollouts: int, timeout_s: float) -> float | None:
        """Waits until so many more were accepted; returns how long that took, in seconds; None: not by then."""
        started = time.monotonic()
        wanted = self._ledger.count(self.actor.actor_id) + n_rollouts
        with self._ledger.changed:
            there = self._ledger.changed.wait_for(
                lambda: self._stop.is_set() or self._ledger.count(self.actor.actor_id) >= wanted, timeout_s
            )
        return time.monotonic() - started if there else None


def run_chaos(
    folder: Path,
    *,
    learner: Literal["queue", "replay"],
    n_faults: int,
    n_actors: int = 4,
    seed: int = 0,
    short: bool = False,
    only: Sequence[Kind] = (),
) -> Report:
    """Brings faults upon actors and their connections, and keeps the books.

    Args:
        folder: Where the actors' logs and acknowledgements go; there are none in it.
        learner: What the rollouts arrive at.
        n_faults: How many faults, shared out among the actors.
        n_actors: How many actors.
        seed: The same seed draws the same faults for the same actors; when they hit is up to the machine.
        short: Leave out what takes long to recover from.
        only: These kinds of faults; none: all.

    Returns:
        What came of it.
    """
    rng = random.Random(seed)
    report = Report(learner, seed)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(LEARNERS[learner](seed))
        report.entries = serving.ledger.entries
        assaults = []
        for i in range(n_actors):
            proxy = Proxy(serving.port, rng.randrange(2**32))
            share = n_faults // n_actors + (i < n_faults % n_actors)
            faults = draw_faults(share, rng, short=short, only=only)
            actor = SupervisedActor(f"chaos-{i}", proxy.address, folder)
            assault = _Assault(actor, proxy, faults, serving.ledger, random.Random(rng.random()))
            stack.callback(assault.end)
            assaults.append(assault)
        for assault in assaults:
            assault.start()
        deadline = time.monotonic() + _START_TIMEOUT_S + _RECOVERY_TIMEOUT_S * (1 + n_faults // n_actors)
        for assault in assaults:
            assault.join(max(0.0, deadline - time.monotonic()))
        report.recoveries = [recovery for assault in assaults for recovery in assault.recoveries]
        _end_all(assaults)
        acknowledged = {a.actor.actor_id: read_acknowledgements(a.actor.acknowledgements) for a in assaults}
        report.duplicates_dropped, report.refused = (
            serving.actors.duplicate_rollouts,
            serving.actors.rejected_rollouts,
        )
        # stops the learner: what was accepted is in the ledger then
        stack.pop_all().close()
    ledger = serving.ledger
    for actor_id, sequences in acknowledged.items():
        ledger.check_acknowledged(actor_id, sequences)
    report.n_rollouts = ledger.n_rollouts
    report.n_acknowledged = sum(sum(sequences.values()) for sequences in acknowledged.values())
    report.hangs = [hang for assault in assaults for hang in assault.hangs]
    if serving.failure is not None:
        report.hangs.append(f"the trainer's thread ended with {serving.failure!r}")
    report.n_starts = sum(assault.actor.n_starts for assault in assaults)
    return report


def _end_all(assaults: list[_Assault]) -> None:
    """Ends them at the same time: each takes as long as its process."""
    threads = [threading.Thread(target=assault.end, daemon=True) for assault in assaults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_RECOVERY_TIMEOUT_S)
