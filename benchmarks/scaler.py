"""Measures how `rollcast scaler` finds the number of actors that a learner needs, from one actor and from too many.

    python -m benchmarks.scaler [--needed 6.3] [--from-above 16] [--faster 5]

A learner, its actors and a scaler with the default rules run as commands. As KEDA and Kubernetes would, this program
asks the scaler every 15 s over KEDA's contract, and starts and ends actors. They share the cores of this machine, in
a cluster they would not: so a step of an environment and an update wait for a known time instead of computing, and
`--needed` actors keep the trainer busy.

First each number of actors around that is measured on its own, for `--fixed-s` seconds; the best is the smallest that
trains at least 97 % of the most steps a second. Then the scaler begins with one actor, and another with
`--from-above`. It has settled when its number has not changed for longer than a window, a question and the cooldown
together; the time counts until the last change was made. `--faster` divides all times of scaler and questions, for a
look in a few minutes.
"""

import argparse
import contextlib
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.table import Figure, print_table
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.tools.scaling.settings import ScalerSettings
from tests.keda import Keda
from tests.processes import free_port, running, wait_until
from tests.zygote import ForkedProcess

_STEP_S, _N_STEPS, _BATCH_SIZE = 0.02, 20, 8
# Kubernetes asks KEDA so often, and KEDA the scaler.
_POLL_S = 15.0
_START_S = 120.0
_GIVE_UP_S = 1200.0
# The best number of actors is the smallest that trains so much of the most steps a second.
_AS_GOOD = 0.97


@dataclass(frozen=True, slots=True)
class Rate:
    """A time of training: the environment steps trained a second, and the share that the trainer waited."""

    env_steps_per_second: float
    waiting: float


class Fleet:
    """The actors of a learner, as many as wanted. Closed, all of them are gone."""

    def __init__(self, address: str, client: LearnerClient) -> None:
        self._address, self._client = address, client
        self._actors: list[tuple[contextlib.ExitStack, ForkedProcess]] = []

    def __len__(self) -> int:
        return len(self._actors)

    def scale(self, n_actors: int) -> None:
        """Starts or ends actors, and waits until the learner has so many."""
        while len(self) < n_actors:
            stack = contextlib.ExitStack()
            process = stack.enter_context(running("actor", ROLLCAST_LEARNER_ADDRESS=self._address, **_ENVIRONMENT))
            self._actors.append((stack, process))
        for _ in range(len(self) - n_actors):
            stack, process = self._actors.pop()
            with stack:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
        wait_until(lambda: self._client.status().actors_alive == n_actors, f"{n_actors} actors", _START_S)

    def close(self) -> None:
        """Kills what is left."""
        while self._actors:
            self._actors.pop()[0].close()


class Progress:
    """The training of a learner since this was made."""

    def __init__(self, client: LearnerClient) -> None:
        self._client = client
        self._began = self._look()

    def rate(self) -> Rate:
        """Returns the mean since the beginning."""
        then, now = self._began, self._look()
        seconds = now[0] - then[0]
        return Rate((now[1] - then[1]) / seconds, (now[2] - then[2]) / seconds)

    def _look(self) -> tuple[float, int, float]:
        status = self._client.status()
        return status.seconds, status.env_steps, status.waiting_fraction * status.seconds + status.waiting_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way of one scaler.

    Attributes:
        numbers: Seconds from its start, and the number of actors from then on.
        settled_s: Seconds until the last number was reached.
        on_the_way: What was trained until then.
        settled: What was trained after that.
    """

    numbers: tuple[tuple[float, int], ...]
    settled_s: float
    on_the_way: Rate
    settled: Rate


_ENVIRONMENT = {
    "ROLLCAST_ENV_ID": "tests.soak.environments:paced_cartpole",
    "ROLLCAST_ENV_KWARGS": json.dumps({"step_s": _STEP_S}),
}


@contextlib.contextmanager
def learner(folder: Path, needed: float) -> Iterator[tuple[str, LearnerClient]]:
    """Runs a learner whose trainer `needed` actors keep busy; yields its address and a client."""
    address = f"localhost:{free_port()}"
    settings = {
        "ROLLCAST_ADDRESS": address,
        "ROLLCAST_RUN_DIR": str(folder / "run"),
        "ROLLCAST_TOTAL_STEPS": str(10**12),
        "ROLLCAST_STOP_RETURN": "1e9",
        "ROLLCAST_ENVS_PER_ACTOR": "1",
        "ROLLCAST_N_ROLLOUT_STEPS": str(_N_STEPS),
        "ROLLCAST_BATCH_SIZE": str(_BATCH_SIZE),
        # an update computes for a moment only, on cores that the actors have, too
        "ROLLCAST_TORCH_THREADS": "1",
        "ROLLCAST_ALGORITHM": "tests.paced_algorithm:PacedImpala",
        "ROLLCAST_ALGORITHM_KWARGS": json.dumps({"update_s": _BATCH_SIZE * _N_STEPS * _STEP_S / needed}),
    }
    with running("learner", "learner", **settings, **_ENVIRONMENT), LearnerClient(address) as client:
        wait_until(lambda: answers(client), "the learner", _START_S)
        yield address, client


def answers(client: LearnerClient) -> bool:
    """Returns True if the learner tells its status."""
    # It starts, or has ended.
    with contextlib.suppress(RollcastError):
        client.status()
        return True
    return False


def measure_fixed(fleet: Fleet, client: LearnerClient, n_actors: int, seconds: float) -> Rate:
    """Trains with so many actors."""
    fleet.scale(n_actors)
    wait_until(lambda: client.status().updates > 0, "an update", _START_S)
    time.sleep(5.0)  # what the number before has left in the queue
    progress = Progress(client)
    time.sleep(seconds)
    return progress.rate()


def follow(address: str, fleet: Fleet, client: LearnerClient, *, first: int, most: int, faster: float) -> Way:
    """Starts a scaler beside so many actors, and does what it says until it has settled.

    Raises:
        SystemExit: It does not settle.
    """
    fields = ScalerSettings.model_fields
    window_s, cooldown_s = (float(fields[name].default) / faster for name in ("window_s", "cooldown_s"))
    poll_s = _POLL_S / faster
    scaler = f"localhost:{free_port()}"
    settings = {
        "ROLLCAST_LEARNER_ADDRESS": address,
        "ROLLCAST_ADDRESS": scaler,
        "ROLLCAST_MAX_ACTORS": str(most),
        "ROLLCAST_WINDOW_S": str(window_s),
        "ROLLCAST_COOLDOWN_S": str(cooldown_s),
        "ROLLCAST_INTERVAL_S": str(1 / faster),
    }
    fleet.scale(first)
    with running("learner", "scaler", **settings), Keda(scaler) as keda:
        wait_until(lambda: knows_a_number(keda), "the scaler", _START_S)
        began = changed = time.monotonic()
        numbers = [(0.0, first)]
        way = since = Progress(client)
        trained: Rate | None = None
        while (now := time.monotonic()) - changed < window_s + poll_s + cooldown_s + window_s:
            if now - began > _GIVE_UP_S:
                sys.exit(f"not settled after {_GIVE_UP_S:.0f} s: {numbers}")
            wanted = keda.replicas(len(fleet))
            if wanted != len(fleet):
                fleet.scale(wanted)
                changed = time.monotonic()
                numbers.append((changed - began, wanted))
                trained, since = way.rate(), Progress(client)
            time.sleep(poll_s)
        settled = since.rate()
    return Way(numbers=tuple(numbers), settled_s=changed - began, on_the_way=trained or settled, settled=settled)


def knows_a_number(keda: Keda) -> bool:
    """Returns True if the scaler has heard from the learner."""
    # The scaler starts.
    with contextlib.suppress(grpc.RpcError):
        return keda.metric() > 0
    return False


def main() -> None:
    """Measures, and prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaler", description=__doc__.splitlines()[0])
    parser.add_argument("--needed", type=float, default=6.3, help="the actors that keep the trainer busy")
    parser.add_argument("--from-above", type=int, default=16, help="the actors of the scaler that begins with too many")
    parser.add_argument("--fixed-s", type=float, default=20.0, help="seconds for each fixed number of actors")
    parser.add_argument("--faster", type=float, default=1.0, help="divides the times of the scaler and of KEDA")
    options = parser.parse_args()
    around = math.ceil(options.needed)
    candidates = sorted({max(1, around - 2), max(1, around - 1), around, around + 1, around + 2, options.from_above})
    with (
        tempfile.TemporaryDirectory(prefix="rollcast-scaler-") as folder,
        learner(Path(folder), options.needed) as (address, client),
        contextlib.closing(Fleet(address, client)) as fleet,
    ):
        fixed = {n_actors: measure_fixed(fleet, client, n_actors, options.fixed_s) for n_actors in candidates}
        ways = [
            follow(address, fleet, client, first=first, most=options.from_above, faster=options.faster)
            for first in (1, options.from_above)
        ]
    most = max(rate.env_steps_per_second for rate in fixed.values())
    best = next(n for n, rate in fixed.items() if rate.env_steps_per_second >= _AS_GOOD * most)
    print_table(
        ("actors, fixed", "env steps/s", "trainer waits"),
        [
            (f"{n} (best)" if n == best else str(n), Figure([rate.env_steps_per_second]), Figure([rate.waiting], ".0%"))
            for n, rate in fixed.items()
        ],
    )
    print()

    def of_best(rate: Rate) -> Figure:
        return Figure([rate.env_steps_per_second / fixed[best].env_steps_per_second], ".0%")

    print_table(
        ("actors over time", "settled after", "at", "trainer waits", "of the best, settled", "on the way"),
        [
            (
                ", ".join(f"{number} at {seconds:.0f} s" for seconds, number in way.numbers),
                Figure([way.settled_s], ".0f", "s"),
                str(way.numbers[-1][1]),
                Figure([way.settled.waiting], ".0%"),
                of_best(way.settled),
                of_best(way.on_the_way),
            )
            for way in ways
        ],
    )


if __name__ == "__main__":
    main()
