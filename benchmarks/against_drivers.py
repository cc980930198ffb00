"""Measures one thing in the tree that runs it: `benchmarks.against` runs it in two trees, in turns.

    python -P benchmarks/against_drivers.py acting RESULT.json

The tree may be of another commit than this file. So this file uses only what stays: the public names of
`rollcast.actor`, `rollcast.learner` and `rollcast.services`, the commands, and of the measured tree's own
`benchmarks.ingest` the names LOADS, N_ACTORS, Learner and synthetic_actor. All times are processor time, user and
system, of a fixed amount of work. -P keeps this folder off the path, because it holds a `statistics.py`.

The result maps what was measured to seconds of the processor: `{"acting, sync: an env step": 3.2e-06}`.
"""

import argparse
import contextlib
import ctypes
import functools
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parent.parent
_ENV_ID = "CartPole-v1"
_START_TIMEOUT_S = 120.0
_N_SUBSCRIBER_PROCESSES = 2
_N_SUBSCRIPTIONS_EACH = 4
_N_SYNTHETIC_ACTORS = 64

Costs = dict[str, float]


def processor_time(pid: int) -> float:
    """Returns the processor time of a process and all its threads, ended ones included, in seconds."""
    clock = ctypes.c_int()
    if error := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error), str(pid))
    return time.clock_gettime(clock.value)


class Meter:
    """The processor time since it was made: of this process, and of the processes that it had started by then."""

    def __init__(self) -> None:
        self._pids = [child.pid for child in psutil.Process().children(recursive=True)]
        self._own, self._others = self._now()

    def _now(self) -> tuple[float, float]:
        return time.process_time(), sum(map(processor_time, self._pids))

    def read(self) -> tuple[float, float]:
        """Returns the seconds of this process, and of the others together."""
        own, others = self._now()
        return own - self._own, others - self._others


def _seconds_a_call(call: Callable[[], object], n_calls: int) -> float:
    for _ in range(1 + n_calls // 10):
        call()
    meter = Meter()
    for _ in range(n_calls):
        call()
    return meter.read()[0] / n_calls


def _until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_START_TIMEOUT_S:.0f} s: {what}")
        time.sleep(0.1)


def _worker(vectorization: Any, n_steps: int, n_envs: int) -> Any:
    """Makes a worker with the first policy of a learner."""
    from rollcast.actor import (
        EnvironmentFactory,
        RolloutWorker,
        TorchPolicy,
        make_policy,
        make_vector_env,
        probe_spaces,
    )
    from rollcast.services import PolicySpec

    factory = EnvironmentFactory(_ENV_ID, vectorization=vectorization)
    spaces = probe_spaces(factory)
    policy = make_policy(spaces, PolicySpec(), seed=0)
    policy.load(1, TorchPolicy(spaces, PolicySpec()).state_arrays())
    vector = make_vector_env(factory, n_envs)
    return RolloutWorker(vector, policy, n_steps, actor_id="benchmark", incarnation=1, env_seed=0)


def acting() -> Costs:
    """Plays CartPole in 64 environments."""
    costs = {}
    for vectorization, n_rollouts in (("sync", 20), ("entry_point", 100)):
        worker = _worker(vectorization, 32, 64)
        seconds = _seconds_a_call(worker.collect, n_rollouts)
        costs[f"acting, {vectorization}: an env step"] = seconds / (32 * 64)
    return costs


def replay() -> Costs:
    """Draws 256 transitions of 100,000, and inserts rollouts of 100 steps; the buffer is full."""
    from rollcast.actor import EnvironmentFactory, probe_spaces
    from rollcast.learner import ReplayBuffer, ReplaySettings

    rollout = _worker("sync", 100, 1).collect()
    spaces = probe_spaces(EnvironmentFactory(_ENV_ID))

    def full_buffer(sampler: Any) -> Any:
        settings = ReplaySettings(capacity=100_000, sampler=sampler)
        buffer = ReplayBuffer(settings, spaces, n_rollout_steps=100, batch_size=256)
        for _ in range(1500):
            buffer.insert(rollout)
        return buffer

    uniform, prioritized = full_buffer("uniform"), full_buffer("prioritized")
    keys = prioritized.sample(256).keys.copy()
    priorities = keys % 7 + 1.0

    def update_and_sample() -> None:
        prioritized.update_priorities(keys, priorities)
        prioritized.sample(256)

    return {
        "replay, uniform: a sample": _seconds_a_call(lambda: uniform.sample(256), 3000) / 256,
        "replay, priorities set and drawn: a sample": _seconds_a_call(update_and_sample, 1000) / 256,
        "replay, inserted: a sample": _seconds_a_call(lambda: uniform.insert(rollout), 3000) / 100,
    }


def ingest(size: str, n_rollouts: int) -> Costs:
    """Takes rollouts of two synthetic actors into batch slots, as `benchmarks.ingest` of the measured tree does it."""
    from ctypes import c_bool

    from benchmarks import ingest as measured

    load = next(load for load in measured.LOADS if load.name == size)
    learner = measured.Learner(load)
    context = multiprocessing.get_context("spawn")
    sending = context.Value(c_bool, True, lock=False)
    for index in range(measured.N_ACTORS):
        arguments = (index, load, learner.address, sending)
        context.Process(target=measured.synthetic_actor, args=arguments, daemon=True).start()
    learner.wait_for_actors()

    def take(n: int) -> int:
        taken = 0
        while taken < n:
            taken += learner.consume(0.1) // load.n_envs
        return taken

    take(n_rollouts // 5)
    meter = Meter()
    taken = take(n_rollouts)
    own, others = meter.read()
    return {
        f"ingest, {size}, learner: a rollout": own / taken,
        f"ingest, {size}, actors: a rollout": others / taken,
    }


def end_to_end() -> Costs:
    """Trains IMPALA with two actors of 64 environments."""
    import torch

    from rollcast.actor import EnvironmentFactory, probe_spaces
    from rollcast.learner import FreshExperience, Impala, ImpalaSettings, SubprocDistributedActors
    from rollcast.services import PolicySpec

    torch.set_num_threads(1)
    factory = EnvironmentFactory(_ENV_ID, vectorization="entry_point")
    algorithm = Impala(probe_spaces(factory), PolicySpec(), ImpalaSettings(), seed=0)
    with SubprocDistributedActors(factory, algorithm.policy, 64, 2, 128, 1.0, envs_per_actor=64) as actors:
        source = FreshExperience(actors)

        def train(n_updates: int) -> int:
            env_steps = 0
            for _ in range(n_updates):
                batch = source.next("cpu").batch
                algorithm.update(batch, progress=0.0)
                actors.broadcast_updated_policy(algorithm.policy_state())
                env_steps += batch.n_env_steps
            return env_steps

        train(20)
        meter = Meter()
        env_steps = train(80)
        own, others = meter.read()
    return {
        "end to end, learner: an env step": own / env_steps,
        "end to end, actors: an env step": others / env_steps,
    }


def _subscribers(address: str, arrivals: "SimpleQueue[int]") -> None:
    """Process: reports the version whenever one of its subscriptions has decoded a policy, for ever."""
    from rollcast.services import LearnerClient

    def subscribe() -> None:
        with LearnerClient(address) as client:
            for version, _state in client.subscribe_policy():
                arrivals.put(version)

    threads = [threading.Thread(target=subscribe) for _ in range(_N_SUBSCRIPTIONS_EACH)]
    for thread in threads:
        thread.start()


def broadcast() -> Costs:
    """Publishes a policy of the Nature CNN to eight subscribers, who decode it."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from rollcast.actor import TorchPolicy
    from rollcast.learner import RemoteDistributedActors, ServingOptions
    from rollcast.services import FLAT_SUBSTEP, PolicySpec, SubstepSpaces

    images = SubstepSpaces(observation=Box(0, 255, (84, 84, 4), np.uint8), action=Discrete(6))
    policy = TorchPolicy({FLAT_SUBSTEP: images}, PolicySpec())
    state = policy.state_arrays()
    n_subscribers = _N_SUBSCRIBER_PROCESSES * _N_SUBSCRIPTIONS_EACH
    megabytes = n_subscribers * sum(array.nbytes for array in state.values()) / 1e6
    context = multiprocessing.get_context("spawn")
    arrivals: SimpleQueue[int] = context.SimpleQueue()
    with RemoteDistributedActors(policy, 20, 8, serving=ServingOptions(addresses=("127.0.0.1:0",))) as learner:
        for _ in range(_N_SUBSCRIBER_PROCESSES):
            context.Process(target=_subscribers, args=(learner.addresses[0], arrivals), daemon=True).start()

        def all_have(version: int) -> None:
            missing = n_subscribers
            while missing:
                missing -= arrivals.get() == version

        all_have(learner.policy_version)
        meter = Meter()
        for _ in range(5):
            learner.broadcast_updated_policy(state)
            all_have(learner.policy_version)
        own, others = meter.read()
    return {
        "broadcast, learner: a megabyte": own / (5 * megabytes),
        "broadcast, subscribers: a megabyte": others / (5 * megabytes),
    }


def _learner(folder: str, *options: str) -> "subprocess.Popen[bytes]":
    """Starts `rollcast learner` at a free port, which it writes into the file `address` of the folder."""
    command = [sys.executable, "-m", "rollcast.learner", "learner", "--env-id", _ENV_ID, "--n-rollout-steps", "32"]
    command += ["--algorithm", "impala", "--batch-size", "8", "--torch-threads", "1", "--run-dir", f"{folder}/run"]
    command += ["--address", "127.0.0.1:0", "--address-file", f"{folder}/address", *options]
    return subprocess.Popen(command)


def actors() -> Costs:
    """Serves many actors with a learner; their time does not count, and they are always those of this file's tree.

    The environment says with ROLLCAST_AGAINST_PYTHON which interpreter has the packages of this file's tree.
    """
    from rollcast.services import LearnerClient, RollcastError

    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "address")
        options = ("--max-actors", str(_N_SYNTHETIC_ACTORS), "--total-steps", "1000000000", "--stop-return", "1e9")
        learner = _learner(folder, *options)
        _until(lambda: address.exists() or learner.poll() is not None, "the learner's address")
        where = json.loads(address.read_text())["address"]
        python = os.environ["ROLLCAST_AGAINST_PYTHON"]
        generator = [python, "-m", "benchmarks.synthetic_actors", where, "--actors", str(_N_SYNTHETIC_ACTORS)]
        playing = subprocess.Popen(generator, cwd=_ROOT)
        with LearnerClient(where) as client:

            def taken() -> list[int]:
                try:
                    return [info.rollouts for info in client.actors()]
                except RollcastError:  # it starts
                    return []

            def all_play() -> bool:
                if playing.poll() is not None:
                    raise RuntimeError("the synthetic actors do not get along with this learner")
                return sum(map(bool, taken())) == _N_SYNTHETIC_ACTORS

            _until(all_play, f"{_N_SYNTHETIC_ACTORS} actors play")
            before, began = processor_time(learner.pid), sum(taken())
            _until(lambda: sum(taken()) > began + 1500, f"{1500} rollouts")
            cost, n_rollouts = processor_time(learner.pid) - before, sum(taken()) - began
        playing.kill()
        learner.kill()
        learner.wait()
    return {f"{_N_SYNTHETIC_ACTORS} actors, learner: a rollout": cost / n_rollouts}


def start_up() -> Costs:
    """Starts a learner and an actor, which end after the first update."""
    importlib.import_module("rollcast.learner")  # a tree without it says so here

    with tempfile.TemporaryDirectory() as folder:
        learner = _learner(folder, "--total-steps", "1")
        command = [sys.executable, "-m", "rollcast.actor", "--learner-address", f"file:{folder}/address"]
        actor = subprocess.Popen([*command, "--envs-per-actor", "8"])
        costs = {}
        for name, process in (("learner", learner), ("actor", actor)):
            _, status, usage = os.wait4(process.pid, 0)
            if code := os.waitstatus_to_exitcode(status):
                raise RuntimeError(f"the {name} ended with exit code {code}")
            costs[f"start-up, {name}: a start and an end"] = usage.ru_utime + usage.ru_stime
    return costs


def updates() -> Costs:
    """Makes updates from one batch of 16 CartPoles."""
    import torch

    from rollcast.actor import EnvironmentFactory, probe_spaces
    from rollcast.learner import Impala, ImpalaSettings, Ppo, PpoSettings, SequentialDistributedActors
    from rollcast.services import PolicySpec

    torch.set_num_threads(1)
    factory = EnvironmentFactory(_ENV_ID)
    spaces = probe_spaces(factory)
    costs = {}
    impala = Impala(spaces, PolicySpec(), ImpalaSettings(), seed=0)
    ppo = Ppo(spaces, PolicySpec(), PpoSettings(), seed=0)
    for algorithm, n_updates in ((impala, 100), (ppo, 5)):
        with SequentialDistributedActors(
            factory, algorithm.policy, n_rollout_steps=64, n_actors=1, batch_size=16, envs_per_actor=16, seed=0
        ) as actors:
            batch, *_ = actors.collect_outputs("cpu")
        seconds = _seconds_a_call(functools.partial(algorithm.update, batch, progress=0.0), n_updates)
        costs[f"updates, {type(algorithm).__name__}: an update"] = seconds
    return costs


DRIVERS: dict[str, Callable[[], Costs]] = {
    "ingest of 64 KiB": lambda: ingest("64 KiB", 800),
    "ingest of 1 MiB": lambda: ingest("1 MiB", 200),
    "acting": acting,
    "end to end": end_to_end,
    "actors": actors,
    "replay": replay,
    "broadcast": broadcast,
    "updates": updates,
    "start-up": start_up,
}


def main() -> None:
    """Measures, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=DRIVERS, help="the thing to measure")
    parser.add_argument("result", type=Path, help="the file to write")
    options = parser.parse_args()
    try:
        options.result.write_text(json.dumps(DRIVERS[options.name]()))
    finally:  # to end them well takes seconds
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
