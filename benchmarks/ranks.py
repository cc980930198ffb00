"""Measures what several ranks cost and give: the reduction of gradients, and one learner beside two.

    python -m benchmarks.ranks [--rounds 3] [--seconds 10]

The first table: two processes over gloo, one torch thread each, make updates of IMPALA with prepared batches.

    reduction    The time of `RankReduction.average`, gradient and tail, after a barrier.
    bare         `dist.all_reduce` of as many bytes, after a barrier, in turns with it.
    round        The time of `RankRounds.agree`, after a barrier.
    share        The time in `average` of the time of an update, where nothing makes the ranks come at once.

The second table: `rollcast learner` on CartPole, alone and as two ranks under torchrun, with the same two processes of
actors of 64 environments. All of it shares the cores of this machine: with two cores, a second learner takes time from
the actors, and the table says what ranks cost where there is nothing to win.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.table import Figure, print_table, ratio

_ROOT: Final = Path(__file__).resolve().parent.parent
_START_TIMEOUT_S: Final = 180.0
_END_TIMEOUT_S: Final = 120.0
_SETTLE_S: Final = 3.0
_MLP, _CNN = "MLP 64x64, T=32, B=64", "Nature CNN, T=20, B=8"
# Name, ranks, and the batch size of each.
_LEARNERS: Final = (("one learner, B=64", 1, 64), ("one learner, B=128", 1, 128), ("two ranks, B=64 each", 2, 64))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are printed")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of a measurement")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        _measure_as_rank(options.seconds)
        return
    found = [_measure_collectives(options.seconds) for _ in range(options.rounds)]
    rows = []
    for name in (_MLP, _CNN):

        def middle(key: str, form: str = ".2f", its: str = name) -> Figure:
            return Figure([one[its][key] for one in found], form)

        rows.append(
            (
                name,
                middle("megabytes", ".3f"),
                middle("reduction"),
                middle("bare"),
                ratio((one[name]["reduction"] for one in found), (one[name]["bare"] for one in found)),
                middle("round"),
                middle("update"),
                middle("share", ".0%"),
            )
        )
    header = ("network", "MB", "reduction, ms", "bare, ms", "ratio (range)", "round, ms", "an update, ms", "share")
    print_table(header, rows)
    print()
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in _LEARNERS}
    for _ in range(options.rounds):
        for name, n_ranks, batch_size in _LEARNERS:
            rates[name].append(_measure_learners(n_ranks, batch_size, options.seconds))
    first = rates[_LEARNERS[0][0]]
    rows = []
    for name, measured in rates.items():
        steps, updates = zip(*measured, strict=True)
        rows.append((name, Figure(steps), Figure(updates, ",.1f"), ratio(steps, (alone for alone, _ in first))))
    print_table(("learners", "env steps/s", "updates/s", "to the first (range)"), rows)


def free_port() -> int:
    """Returns a port of this machine that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _measure_collectives(seconds: float) -> dict[str, Any]:
    """Runs two ranks; returns what rank 0 has measured, by network."""
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "benchmarks.ranks", "--as-rank", "--seconds", str(seconds)]
    processes = [
        subprocess.Popen(command, cwd=_ROOT, env=os.environ | place | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        output, _ = processes[0].communicate(timeout=10 * seconds + _START_TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    measured: dict[str, Any] = json.loads(output)
    return measured


def _measure_as_rank(seconds: float) -> None:
    """Measures as one of two ranks; prints the results as JSON."""
    import numpy as np
    import torch
    from gymnasium.spaces import Box, Discrete

    from benchmarks.learning import cartpole_batch
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings
    from rollcast.learner.batch import Batch
    from rollcast.learner.ranks.group import RankGroup
    from rollcast.learner.ranks.rank_info import rank_info
    from rollcast.services.policies.policies import PolicySpec
    from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces

    torch.set_num_threads(1)
    place = rank_info(os.environ)
    assert place is not None, "started without RANK"

    def pixels() -> Batch:
        import dataclasses

        batch = cartpole_batch(20, 8)
        columns = batch.substeps[FLAT_SUBSTEP]
        images = torch.randint(0, 256, (21, 8, 4, 84, 84), dtype=torch.uint8)
        columns = dataclasses.replace(
            columns,
            observation={"": images[:20]},
            last_observation={"": images[20]},
            final_observation={"": images[20, :0]},
        )
        return dataclasses.replace(batch, substeps={FLAT_SUBSTEP: columns})

    spaces = {
        _MLP: Box(-np.inf, np.inf, (4,), np.float32),
        _CNN: Box(0, 255, (4, 84, 84), np.uint8),
    }
    found = {}
    with RankGroup(place, timeout_s=60.0) as group:
        group.begin("gloo")
        for name, box in spaces.items():
            substep = SubstepSpaces(observation=box, action=Discrete(2))
            algorithm = Impala({FLAT_SUBSTEP: substep}, PolicySpec(), ImpalaSettings())
            found[name] = _measure_network(
                group, algorithm, cartpole_batch(32, 64) if name == _MLP else pixels(), seconds
            )
        if group.rank == 0:
            print(json.dumps(found))


def _measure_network(group: Any, algorithm: Any, batch: Any, seconds: float) -> dict[str, float]:
    """Measures one network's reduction and updates; returns milliseconds, megabytes and a share."""
    import torch
    from torch import distributed

    from rollcast.learner.ranks.reduction import RankReduction
    from rollcast.learner.ranks.rounds import RankRounds, RankState

    took: list[float] = []

    class Timed(RankReduction):
        def average(self, gradient: Any, terms: Any, count: Any) -> Any:
            shapes[:] = [gradient.numel(), len(terms)]
            began = time.perf_counter()
            result = super().average(gradient, terms, count)
            took.append(time.perf_counter() - began)
            return result

    shapes: list[int] = []
    reduction, rounds = Timed(group), RankRounds(group)
    algorithm.join_ranks(reduction)
    for _ in range(3):
        algorithm.update(batch, progress=0.0)
    gradient, terms = torch.ones(shapes[0]), [torch.tensor(1.0)] * shapes[1]
    bare = torch.ones(shapes[0] + shapes[1] + 1)
    kinds: dict[str, Callable[[], object]] = {
        "reduction": lambda: reduction.average(gradient, terms, 8.0),
        "bare": lambda: distributed.all_reduce(bare),
        "round": lambda: rounds.agree(RankState(has_batch=True)),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}

    def in_turns() -> None:
        for kind, call in kinds.items():
            distributed.barrier()
            began = time.perf_counter()
            call()
            times[kind].append(time.perf_counter() - began)

    _repeat(group, in_turns, seconds / 2)
    took.clear()
    updates: list[float] = []

    def update() -> None:
        began = time.perf_counter()
        algorithm.update(batch, progress=0.0)
        updates.append(time.perf_counter() - began)

    _repeat(group, update, seconds / 2)
    return {
        **{kind: 1e3 * statistics.median(of_kind) for kind, of_kind in times.items()},
        "megabytes": 4e-6 * bare.numel(),
        "update": 1e3 * statistics.median(updates),
        "share": sum(took) / sum(updates),
    }


def _repeat(group: Any, call: Callable[[], None], seconds: float) -> None:
    """Calls again and again for so long, at both ranks as often: rank 0 says how often."""
    import torch

    began = time.perf_counter()
    for _ in range(5):
        call()
    n = torch.tensor([5 * seconds / (time.perf_counter() - began)])
    group.broadcast(n, "the number of repetitions")
    for _ in range(max(10, int(n))):
        call()


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command, and kills at the end what is left of it and of its children."""
    process = subprocess.Popen(
        command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def learner_command(n_ranks: int) -> list[str]:
    """Returns the command of a learner alone, or of ranks under torchrun."""
    if n_ranks == 1:
        return [sys.executable, "-m", "rollcast.learner", "learner"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n_ranks)]
    return [*torchrun, "--master-port", str(free_port()), "-m", "rollcast.learner", "learner"]


def _measure_learners(n_ranks: int, batch_size: int, seconds: float) -> tuple[float, float]:
    """Returns env steps a second, and updates a second, of all learners together."""
    from rollcast.services.client.client import LearnerClient
    from rollcast.services.errors import RollcastError

    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        learner = [
            "--address",
            address,
            "--run-dir",
            f"{folder}/run",
            "--env-id",
            "CartPole-v1",
            "--stop-return",
            "1e9",
        ]
        learner += ["--batch-size", str(batch_size), "--envs-per-actor", "64", "--n-rollout-steps", "32"]
        learner += ["--total-steps", "1000000000", "--torch-threads", "1", "--algorithm", "impala"]
        process = stack.enter_context(running([*learner_command(n_ranks), *learner]))
        actor = [sys.executable, "-m", "rollcast.actor", "--learner-address", address, "--envs-per-actor", "64"]
        for _ in range(2):
            stack.enter_context(running([*actor, "--connect-timeout-s", str(_START_TIMEOUT_S)]))
        client = stack.enter_context(LearnerClient(address))
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            # With two ranks each has one actor.
            with contextlib.suppress(RollcastError):  # it does not serve yet
                status = client.status()
                if status.actors_alive == 2 // n_ranks and status.updates >= 10:
                    break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{n_ranks} learners do not train within {_START_TIMEOUT_S} s")
            time.sleep(0.2)
        time.sleep(_SETTLE_S)
        before, began = client.status(), time.perf_counter()
        time.sleep(seconds)
        after, passed_s = client.status(), time.perf_counter() - began
        client.stop()
        process.wait(_END_TIMEOUT_S)
        return (after.env_steps - before.env_steps) / passed_s, (after.updates - before.updates) / passed_s


if __name__ == "__main__":
    main()
