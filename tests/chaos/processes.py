"""Actor processes that are killed, frozen and ended, and start again under their names."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.chaos.learners import ENVS_PER_ACTOR
from tests.processes import ROOT, environment

_STEP_S = 0.002
_END_TIMEOUT_S = 20.0
_LOOK_S = 0.1


class SupervisedActor:
    """One actor: a process, and a thread that starts the next when it ends.

    Args:
        actor_id: Its name.
        address: What it dials.
        folder: Where it writes its log and its acknowledgements.
    """

    def __init__(self, actor_id: str, address: str, folder: Path) -> None:
        self.actor_id = actor_id
        self.acknowledgements = folder / f"{actor_id}.acknowledged"
        self.log = folder / f"{actor_id}.log"
        self._address = address
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards the process: it is not started and signalled at once
        self._process = self._start()
        self.n_starts = 1
        self._thread = threading.Thread(target=self._supervise, name=f"chaos-supervisor-{actor_id}", daemon=True)
        self._thread.start()

    def signal(self, number: int) -> None:
        """Sends the process that runs now a signal; one that has just ended gets none."""
        with self._lock:
            if self._process.poll() is None:
                self._process.send_signal(number)

    def close(self) -> bool:
        """Ends it with SIGTERM, and for good.

        Returns:
            Whether it ended by itself; if not, it was killed.
        """
        self._closing.set()
        self._thread.join(_END_TIMEOUT_S)
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_TIMEOUT_S)
            return False
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        options = {
            "--learner-address": self._address,
            "--actor-id": self.actor_id,
            "--env-id": "tests.chaos.bookkeeping:BookkeepingEnv",
            "--env-kwargs": f'{{"step_s": {_STEP_S}}}',
            "--envs-per-actor": str(ENVS_PER_ACTOR),
            # for those whose run was killed: they end by themselves
            "--reconnect-timeout-s": "120",
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.acting", self.acknowledgements, *sum(options.items(), ())],
                cwd=ROOT,
                env=environment(),
                stdout=log,
                stderr=log,
            )

    def _supervise(self) -> None:
        while not self._closing.wait(_LOOK_S):
            with self._lock:
                if self._process.poll() is not None and not self._closing.is_set():
                    self._process = self._start()
                    self.n_starts += 1
