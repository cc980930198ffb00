"""Measures environments that dial in beside a bare ping-pong: round trips a second, and how long an action takes.

    python -m benchmarks.dial_in [--seconds 5] [--rounds 3] [--clients 1 16 64] [--hz 60] [--step-ms 0 1 10]

A process has the clients, each a stream of `grpc.aio` with one environment of four floats. Another has the server: that
of an actor, with a policy of two layers of 64, or a bare one of `grpc.aio` that returns each message. Clients send the
next turn when they have the action; or, in the second table, 60 times a second, each at its own phase. The time is that
of a client: from the turn that it sends to the action that it gets. Both servers are measured in turns.

The third table has environment steps a second of 8 environments whose step takes a while, without computing: as
clients, and as those of an actor that steps them in processes, one for each core.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.table import Figure, print_table, ratio
from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.supply import EnvironmentSupply
from rollcast.actor.workers.dialled import DialInWorker
from rollcast.actor.workers.make import make_worker
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.codec import environment_spaces_to_proto
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.v1 import environment_pb2

SPACES: Final = {
    "0": SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (4,), np.float32), action=spaces.Discrete(2))
}
METHOD: Final = "/rollcast.v1.EnvironmentService/Play"
N_ROLLOUT_STEPS: Final = 32
# The environments of the third table.
N_ENVS: Final = 8
# Seconds before the measurement, in which connections and caches become warm.
WARM_UP_S: Final = 1.0

HELLO: Final = environment_pb2.PlayRequest(
    hello=environment_pb2.Hello(protocol=1, substeps=environment_spaces_to_proto(SPACES))
).SerializeToString()
_AGENT: Final = environment_pb2.AgentTurn(state=1, observation=[np.zeros(4, np.float32).tobytes()], reward=1.0)
TURN: Final = environment_pb2.PlayRequest(
    turns=environment_pb2.Turns(turns=[environment_pb2.EnvironmentTurn(agents=[_AGENT])])
).SerializeToString()


class Sleeping(gymnasium.Env[Any, Any]):
    """An environment whose step takes a while, and computes nothing."""

    observation_space = SPACES["0"].observation
    action_space = SPACES["0"].action

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode that never ends."""
        super().reset(seed=seed, options=options)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes its time."""
        del action
        if self._step_s:
            time.sleep(self._step_s)
        return np.zeros(4, np.float32), 1.0, False, False, {}


def local_steps(step_s: float, seconds: float) -> float:
    """Returns the environment steps a second of an actor that steps the environments itself."""
    factory = EnvironmentFactory("benchmarks.dial_in:Sleeping", {"step_s": step_s}, vectorization="subprocess")
    with EnvironmentSupply(factory, N_ENVS) as environments:
        policy = policy_of_actor()
        vector = environments.take(N_ENVS)
        worker = make_worker(vector, policy, N_ROLLOUT_STEPS, actor_id="a", incarnation=1, env_seed=0)
        worker.collect()
        n_steps, began = 0, time.monotonic()
        while (took := time.monotonic() - began) < seconds:
            rollout = worker.collect()
            assert rollout is not None  # nothing stops it
            n_steps += rollout.n_env_steps
        return n_steps / took


def policy_of_actor() -> Policy:
    """Returns a policy of two layers of 64, with weights."""
    policy = make_policy(SPACES, PolicySpec(), seed=0)
    policy.load(1, TorchPolicy(SPACES, PolicySpec()).state_arrays())
    return policy


def serve_actor(n_clients: int, pipe: Connection) -> None:
    """Serves as an actor does, until the pipe says so; rollouts are thrown away."""
    limit_threads(1)
    environments = DialledEnvironments(address="here", spaces=SPACES)
    limits = Limits(max_actors=max(64, n_clients))
    with EnvironmentServer("127.0.0.1:0", environments, limits=limits) as server:
        environments.agree(n_clients)
        worker = DialInWorker(environments, policy_of_actor(), N_ROLLOUT_STEPS, actor_id="a", incarnation=1, env_seed=0)
        pipe.send(server.address)
        stop = threading.Event()
        threading.Thread(target=lambda: (pipe.recv(), stop.set()), daemon=True).start()
        while not stop.is_set():
            worker.collect(stop.is_set)


def serve_bare(n_clients: int, pipe: Connection) -> None:
    """Returns each message, until the pipe says so."""
    del n_clients

    async def echo(requests: Any, context: Any) -> None:  # generic in the stubs only
        async for message in requests:
            await context.write(message)

    async def serve() -> None:
        server = grpc.aio.server()
        play: Any = grpc.stream_stream_rpc_method_handler
        handlers = grpc.method_handlers_generic_handler(METHOD.split("/")[1], {"Play": play(echo)})
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(f"127.0.0.1:{port}")
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await server.stop(0)

    asyncio.run(serve())


@contextlib.contextmanager
def running(serve: Callable[[int, Connection], None], n_clients: int) -> Iterator[str]:
    """Runs a server in a process; yields its address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(n_clients, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join(10)
        process.kill()


async def _play(
    channel: grpc.aio.Channel, hz: float | None, step_s: float, begins: float, ends: float, took: list[float]
) -> None:
    call: Any = channel.stream_stream(METHOD)()
    await call.write(HELLO)
    await call.read()
    due = time.monotonic() + (random.random() / hz if hz else 0.0)
    while (now := time.monotonic()) < ends:
        if hz:
            await asyncio.sleep(max(0.0, due - now))
            due += 1.0 / hz
        elif step_s:
            await asyncio.sleep(step_s)
        sent = time.monotonic()
        await call.write(TURN)
        await call.read()
        got = time.monotonic()
        if begins <= sent and got <= ends:
            took.append(got - sent)
    call.cancel()


async def _play_all(address: str, n_clients: int, seconds: float, hz: float | None, step_s: float) -> list[float]:
    took: list[float] = []
    begins = time.monotonic() + WARM_UP_S
    async with grpc.aio.insecure_channel(address) as channel:
        plays = (_play(channel, hz, step_s, begins, begins + seconds, took) for _ in range(n_clients))
        await asyncio.gather(*plays)
    return took


def measure(
    serve: Callable[[int, Connection], None],
    n_clients: int,
    seconds: float,
    hz: float | None = None,
    step_s: float = 0.0,
) -> list[float]:
    """Returns the seconds of each round trip.

    Args:
        serve: The server.
        n_clients: Streams at once.
        seconds: The length of the measurement.
        hz: Turns a second of each; None: each at once.
        step_s: Seconds from an action to the next turn, without `hz`.
    """
    with running(serve, n_clients) as address:
        return asyncio.run(_play_all(address, n_clients, seconds, hz, step_s))


def main() -> None:
    """Measures and prints the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of all measurements, in turns")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64], help="streams at once")
    parser.add_argument("--hz", type=float, default=60.0, help="turns a second of each client of the second table")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0, 1, 10], help="of a step in the third table")
    options = parser.parse_args()
    cases: list[tuple[int, float | None]] = [(n, None) for n in options.clients]
    cases.append((max(options.clients), options.hz))
    found: dict[tuple[int, float | None], dict[str, list[np.ndarray]]] = {
        case: {"bare": [], "actor": []} for case in cases
    }
    steps: dict[float, dict[str, list[float]]] = {ms: {"local": [], "dialled": []} for ms in options.step_ms}
    for _ in range(options.rounds):
        for (n_clients, hz), measured in found.items():
            measured["bare"].append(np.array(measure(serve_bare, n_clients, options.seconds, hz)))
            measured["actor"].append(np.array(measure(serve_actor, n_clients, options.seconds, hz)))
        for ms, rates in steps.items():
            rates["local"].append(local_steps(ms / 1e3, options.seconds))
            took = measure(serve_actor, N_ENVS, options.seconds, step_s=ms / 1e3)
            rates["dialled"].append(len(took) / options.seconds)
    rows = []
    for (n_clients, hz), measured in found.items():
        if hz is None:
            bare, actor = ([len(took) / options.seconds for took in measured[name]] for name in ("bare", "actor"))
            rows.append([str(n_clients), Figure(bare), Figure(actor), ratio(actor, bare)])
    print_table(["clients", "bare round trips/s", "dialled in/s", "ratio"], rows)
    n_clients, hz = cases[-1]
    rows = []
    for quantile in (50, 99):
        bare, actor = (
            [float(np.percentile(took, quantile)) for took in found[n_clients, hz][name]] for name in ("bare", "actor")
        )
        shown = [Figure(times, ".2f", "ms", scale=1e3) for times in (bare, actor)]
        rows.append([f"p{quantile} of {n_clients} clients of {hz:g} Hz", *shown, ratio(actor, bare)])
    print_table(["time of an action", "bare", "dialled in", "ratio"], rows)
    rows = [
        [f"{ms:g} ms a step", Figure(rates["local"]), Figure(rates["dialled"]), ratio(rates["dialled"], rates["local"])]
        for ms, rates in steps.items()
    ]
    print_table([f"env steps/s of {N_ENVS} environments", "local", "dialled in", "ratio"], rows)


if __name__ == "__main__":
    main()
