"""Measures a step of an actor alone, with central inference, and a bare ping-pong of the same bytes.

    python -m benchmarks.central_inference [--seconds 5] [--rounds 3] [--device cpu]

A step is a call of the policy for all environments of the actor: 8 with two layers of 64, or 64 with two of 1024. Each
sees 64 floats. The server is another process on this machine. The bare one is of `grpc.aio` and returns each message to
a client that does no more than send and read. All are measured in turns.
"""

import argparse
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.dial_in import METHOD, WARM_UP_S, running, serve_bare
from benchmarks.table import Figure, print_table
from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.inference.central import CentralInference
from rollcast.actor.inference.engine import InferenceEngine
from rollcast.actor.inference.followed_policies import FollowedPolicy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.threads import limit_threads
from rollcast.services.inference.codec import QuestionCodec
from rollcast.services.inference.inference import InferenceNetwork, Question, weights_digest
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.security.security import PLAIN_CLIENT
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces

SPACES: Final = {
    FLAT_SUBSTEP: SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (64,), np.float32), action=spaces.Discrete(8))
}
CASES: Final = ((64, 8), (1024, 64))
# Takes a step.
Step = Callable[[], object]


class OnePolicy:
    """Stands for `FollowedPolicies`: one version, the same in every process."""

    def __init__(self, spec: PolicySpec) -> None:
        self.state = weights(spec)

    def follow(self, take: Callable[[FollowedPolicy], None]) -> None:
        """Gives the version."""
        take(FollowedPolicy(1, self.state, {1: weights_digest(self.state)}))

    def close(self) -> None:
        """Does nothing."""


def weights(spec: PolicySpec) -> PolicyState:
    """Returns the same weights in every process."""
    torch.manual_seed(0)
    return TorchPolicy(SPACES, spec).state_arrays()


def serve_central(spec: PolicySpec, device: str, _n_clients: int, pipe: Connection) -> None:
    """Computes the policy of others, until the pipe says so."""
    limit_threads(1)
    policies: Any = OnePolicy(spec)
    with (
        InferenceEngine(policies, device=None if device == "cpu" else device) as engine,
        EnvironmentServer("127.0.0.1:0", DialledEnvironments(address="here"), inference=engine) as server,
    ):
        pipe.send(server.address)
        pipe.recv()


@contextmanager
def alone(spec: PolicySpec, observation: np.ndarray, _device: str) -> Iterator[Step]:
    """An actor's own policy."""
    policy = make_policy(SPACES, spec, seed=0)
    policy.load(1, weights(spec))
    yield lambda: policy.act({"": observation})


@contextmanager
def central(spec: PolicySpec, observation: np.ndarray, device: str) -> Iterator[Step]:
    """The policy of an actor that asks."""
    with (
        running(partial(serve_central, spec, device), 1) as address,
        CentralInference(address, timeout_s=60.0, security=PLAIN_CLIENT) as inference,
    ):
        policy = inference.over(make_policy(SPACES, spec, seed=0), spec, seed=0, slot=0)
        policy.load(1, weights(spec))
        while not inference.latencies.n_noted:
            policy.act({"": observation})
        n_alone = inference.n_alone
        yield lambda: policy.act({"": observation})
        assert inference.n_alone == n_alone, "it was asked in each step"


@contextmanager
def bare(spec: PolicySpec, observation: np.ndarray, _device: str) -> Iterator[Step]:
    """The bytes of a question, there and back."""
    question = QuestionCodec(InferenceNetwork(SPACES, spec)).to_bytes(
        Question(1, bytes(16), FLAT_SUBSTEP, {"": observation}, None)
    )
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with running(serve_bare, 1) as address, grpc.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(METHOD)(iter(requests.get, None))
        yield lambda: (requests.put(question), next(call))
        requests.put(None)


def measure(step: Step, seconds: float) -> np.ndarray:
    """Returns the seconds of each step."""
    begins = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < begins:
        step()
    took = []
    while (now := time.perf_counter()) < begins + seconds:
        step()
        took.append(time.perf_counter() - now)
    return np.array(took)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of all measurements, in turns")
    parser.add_argument("--device", default="cpu", help="the server's: cpu, cuda or cuda:0")
    options = parser.parse_args()
    limit_threads(1)
    ways = {"alone": alone, f"central inference on {options.device}": central, "bare ping-pong": bare}
    found: dict[tuple[int, int, str], list[np.ndarray]] = {
        (size, n_envs, name): [] for size, n_envs in CASES for name in ways
    }
    for _ in range(options.rounds):
        for (size, n_envs, name), rounds in found.items():
            observation = np.random.default_rng(0).standard_normal((n_envs, 64), np.float32)
            with ways[name](PolicySpec(hidden_sizes=(size, size)), observation, options.device) as step:
                rounds.append(measure(step, options.seconds))
    rows = []
    for (size, n_envs, name), rounds in found.items():
        shown = [Figure([np.percentile(took, of) for took in rounds], ".0f", "us", scale=1e6) for of in (50, 99)]
        rows.append([f"2x{size}, {n_envs} environments", name, *shown])
    print_table(["policy", "a step", "p50", "p99"], rows)


if __name__ == "__main__":
    main()
