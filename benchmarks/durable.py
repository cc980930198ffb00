"""Measures the cost of `--durable`: ingest with and without the write-ahead log, and the rate of the bare disk.

    python -m benchmarks.durable [--seconds 1.5] [--rounds 7] [--only "64 KiB"] [--folder FOLDER] [--rate 250]

Two learners take turns, as in `benchmarks.ingest`, each with two synthetic actors. One of them writes every rollout to
the disk before it acknowledges it. In the same round a bare loop writes as many bytes as a rollout has to existing
blocks of a file and calls fdatasync each time: the upper bound for a learner that waits for each rollout. The log is
truncated whenever it is half full, as checkpoints do, and measured once its files are reused.

With --rate, consumers take at most that many MB/s, as a trainer does. This shows whether the log keeps up, and its
processor time.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from ctypes import c_bool
from pathlib import Path
from typing import Any

from benchmarks.ingest import LOADS, N_ACTORS, Learner, Load, rollout_bytes, synthetic_actor, synthetic_rollout
from benchmarks.table import Figure, print_table, ratio
from rollcast.learner.durable.rollouts import DurableRollouts

_SETTLE_S = 0.3
_MAX_LOG_BYTES = 512 << 20
_DISK_BYTES = 256 << 20
_DISK_S = 0.5


class Disk:
    """A file with allocated blocks, written again and again from its start.

    Args:
        folder: The folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)
        for offset in range(0, _DISK_BYTES, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), offset)
        os.fsync(self._file)
        self._offset = 0

    def rate(self, n_bytes: int) -> float:
        """Measures writes of `n_bytes`, each with an fdatasync, in bytes per second."""
        content, n_written = os.urandom(n_bytes), 0
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < _DISK_S:
            if self._offset + n_bytes > _DISK_BYTES:
                self._offset = 0
            os.pwrite(self._file, content, self._offset)
            os.fdatasync(self._file)
            self._offset += n_bytes
            n_written += n_bytes
        return n_written / elapsed


class Contender:
    """A learner and its actors.

    Args:
        load: The rollouts to send.
        durable: The learner's log; None: no log.
        context: The start method of processes.
    """

    def __init__(self, load: Load, durable: DurableRollouts | None, context: Any) -> None:
        self._n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0")) / load.n_envs
        self._learner = Learner(load, durable=durable)
        self._durable = durable
        self._sending = context.Value(c_bool, False, lock=False)
        self._processes = [
            context.Process(target=synthetic_actor, args=(i, load, self._learner.address, self._sending), daemon=True)
            for i in range(N_ACTORS)
        ]
        for process in self._processes:
            process.start()
        self._learner.wait_for_actors()

    def rate(self, seconds: float, limit: float) -> tuple[float, float]:
        """Measures bytes per second and the learner's processor time per byte; `limit` is the largest rate it takes."""
        self._sending.value = True
        self._consume(_SETTLE_S, limit)
        started, cpu = time.perf_counter(), time.process_time()
        n_bytes = self._consume(seconds, limit)
        elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
        self._sending.value = False
        self._consume(_SETTLE_S, float("inf"))
        return n_bytes / elapsed, cpu / max(n_bytes, 1)

    def _consume(self, seconds: float, limit: float) -> float:
        if limit == float("inf"):
            return self._learner.consume(seconds) * self._n_bytes
        started, n_bytes = time.perf_counter(), 0.0
        while (elapsed := time.perf_counter() - started) < seconds:
            if n_bytes > elapsed * limit:
                time.sleep(n_bytes / limit - elapsed)
            n_bytes += self._learner.consume(0.005) * self._n_bytes
        return n_bytes

    def close(self) -> None:
        """Ends the actors, then the learner."""
        for process in self._processes:
            process.kill()
            process.join()
        self._learner.close()
        if self._durable is not None:
            self._durable.close()


def measure(load: Load, rounds: int, seconds: float, limit: float, folder: Path) -> list[tuple[float, ...]]:
    """Measures rounds: bytes per second and processor time per byte without and with the log, and the disk's rate."""
    context = multiprocessing.get_context("spawn")
    n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0"))
    disk = Disk(folder)
    durable = DurableRollouts(
        folder / "log", max_bytes=_MAX_LOG_BYTES, ask_for_checkpoint=lambda: durable.saved(durable.state() or {})
    )
    contenders = []
    try:
        for log in (None, durable):
            contenders.append(Contender(load, log, context))
        n_logged = 0.0
        while n_logged < _MAX_LOG_BYTES:  # from then on, files are reused
            n_logged += contenders[1].rate(seconds, limit)[0] * seconds
        measured = []
        for _ in range(rounds + 1):
            (plain, plain_cpu), (logged, logged_cpu) = (each.rate(seconds, limit) for each in contenders)
            measured.append((plain, logged, plain_cpu, logged_cpu, disk.rate(n_bytes)))
        return measured[1:]
    finally:
        for contender in contenders:
            contender.close()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are printed")
    parser.add_argument("--only", help="measure only loads whose name contains this")
    parser.add_argument("--folder", type=Path, help="folder of the log (default: that of temporary files)")
    parser.add_argument("--rate", type=float, default=float("inf"), help="largest rate of the learners in MB/s")
    options = parser.parse_args()
    rows = []
    for load in LOADS:
        if options.only and options.only not in load.name:
            continue
        with tempfile.TemporaryDirectory(prefix="rollcast-durable-", dir=options.folder) as folder:
            measured = measure(load, options.rounds, options.seconds, options.rate * 1e6, Path(folder))
        plain, logged, plain_cpu, logged_cpu, disk = zip(*measured, strict=True)
        rows.append(
            (
                load.name,
                *(Figure(rates, ",.0f", "MB/s", scale=1e-6) for rates in (plain, logged, disk)),
                ratio(logged, plain, ".0%"),
                *(Figure(seconds, ".2f", "s/GB", scale=1e9) for seconds in (plain_cpu, logged_cpu)),
            )
        )
    limit = f"; at most {options.rate:g} MB/s taken" if options.rate < float("inf") else ""
    print(
        f"\n{N_ACTORS} synthetic actors, {options.rounds} rounds of {options.seconds} s{limit}; medians of the rounds"
    )
    header = ("rollout", "plain", "--durable", "bare disk", "ratio (rounds)", "learner's CPU", "with the log")
    print_table(header, rows)


if __name__ == "__main__":
    main()
