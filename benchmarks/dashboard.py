"""Measures the dashboard in a headless Chromium: `python -m benchmarks.dashboard`.

Two things: how fluid a page of 200 actors and an hour is, and what dashboard and page cost the learner beside them.
"""

import argparse
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.synthetic_run import SyntheticRun
from benchmarks.table import Figure, print_table
from rollcast.services.client.client import LearnerClient
from tests.browser import Watcher, chromium, dashboard, watcher
from tests.histories import busy_run, serve_history
from tests.processes import free_port, running, wait_until

# Gaps between frames, while the page has updates.
_FRAMES = """(seconds) => new Promise((done) => {
  const gaps = []; const begin = performance.now(); let before = begin;
  const frame = (now) => {
    gaps.push(now - before); before = now;
    if (now - begin > 1000 * seconds) done(gaps); else requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""


def measure_page(n_actors: int, seconds: float) -> list[tuple[str, str | Figure]]:
    """Returns rows: how long the first paint takes, and what updates cost."""
    with serve_history(busy_run(2)) as served, chromium() as browser:
        served.history.history = SyntheticRun(n_actors).history  # type: ignore[method-assign]  # an hour of many actors
        with dashboard("--learner-address", served.address) as (url, process):
            paints = []
            for _ in range(5):
                with watcher(browser) as seen:
                    _open(seen, url)
                    paints.append(
                        seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                    )
            paint = Figure(paints, ".0f", "ms", has_range=True)
            rows: list[tuple[str, str | Figure]] = [("first paint, nothing in the cache", paint)]
            for span in ("1 min", "5 min", "1 h"):
                with watcher(browser) as seen:
                    rows += _updates(seen, url, span, process.pid, seconds)
    return rows


def _open(seen: Watcher, url: str) -> None:
    seen.open(url)
    seen.wait_for_text(".strips-head", "actors")


def _updates(seen: Watcher, url: str, span: str, pid: int, seconds: float) -> Iterator[tuple[str, Figure]]:
    received: list[int] = []
    seen.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
    _open(seen, url)
    seen.page.locator("[data-choice=span]").get_by_text(span, exact=True).click()
    seen.page.evaluate(_FRAMES, 2)
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("Performance.enable")
    received.clear()
    busy_before, cpu_before, began = _busy_s(session), _cpu_s(pid), time.monotonic()
    gaps = seen.page.evaluate(_FRAMES, seconds)
    took_s = time.monotonic() - began
    busy = (_busy_s(session) - busy_before) / took_s
    cpu = (_cpu_s(pid) - cpu_before) / took_s
    yield f"{span} shown: page busy", Figure([busy], ".1f", "% of the time", scale=100)
    yield f"{span} shown: frames, p50", Figure([float(np.percentile(gaps, 50))], ".0f", "ms")
    yield f"{span} shown: frames, p99", Figure([float(np.percentile(gaps, 99))], ".0f", "ms")
    yield f"{span} shown: received", Figure([sum(received) / took_s], ".0f", "kB/s", scale=1e-3)
    yield f"{span} shown: the dashboard's process", Figure([cpu], ".1f", "% of a core", scale=100)


def _busy_s(session: Any) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure_cost(rounds: int, seconds: float) -> list[tuple[str, str | Figure]]:
    """Returns a row: the learner's steps a second beside a dashboard with a page, over those while both are stopped.

    Each round has both, a few seconds each, so that what else the machine does is in both alike.
    """
    address = f"localhost:{free_port()}"
    ends = ("--algorithm", "impala", "--total-steps", "1000000000", "--stop-return", "1e9")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        options = ("--n-actors", 1, "--address", address, "--run-dir", Path(folder) / "run", *ends)
        with running("learner", "train", *options), LearnerClient(address) as learner:
            wait_until(lambda: _trains(learner), "training", 60)
            with dashboard("--learner-address", address) as (url, process), watcher(browser) as seen:
                seen.open(url)
                # as `rollcast train --dashboard` starts it
                os.setpriority(os.PRIO_PROCESS, process.pid, 10)
                # the browser is somebody else's machine: what it takes of this one is not the dashboard's
                for child in psutil.Process().children(recursive=True):
                    if "chrom" in child.name():
                        child.nice(19)
                time.sleep(5.0)
                ratios, cpu_before, began = [], _cpu_s(process.pid), time.monotonic()
                for _ in range(rounds):
                    with_it = _rate(learner, seconds)
                    os.kill(process.pid, signal.SIGSTOP)
                    without = _rate(learner, seconds)
                    os.kill(process.pid, signal.SIGCONT)
                    ratios.append(with_it / without)
                cpu = 2 * (_cpu_s(process.pid) - cpu_before) / (time.monotonic() - began)
    steps = Figure(ratios, ".1f", "% of its steps/s", scale=100, has_range=True, is_quartiles=True)
    return [
        (f"learner beside a dashboard and a page, one actor, {rounds} rounds", steps),
        ("the dashboard's process beside it", Figure([cpu], ".1f", "% of a core", scale=100)),
    ]


def _trains(learner: LearnerClient) -> bool:
    with contextlib.suppress(Exception):  # it starts
        return learner.status().updates > 100
    return False


def _rate(learner: LearnerClient, seconds: float) -> float:
    before, began = learner.status().env_steps, time.monotonic()
    time.sleep(seconds)
    return (learner.status().env_steps - before) / (time.monotonic() - began)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-actors", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    rows = measure_page(arguments.n_actors, arguments.seconds)
    rows += measure_cost(arguments.rounds, min(arguments.seconds, 3.0))
    print_table(("measured", f"{arguments.n_actors} actors, an hour"), rows)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
