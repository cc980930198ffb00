"""Central inference in the test's own process: policies by hand, a real server, and actors that ask it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.inference.central import CentralInference
from rollcast.actor.inference.engine import InferenceEngine
from rollcast.actor.inference.followed_policies import FollowedPolicy
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.make import make_worker
from rollcast.services.inference.inference import weights_digest
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.processes import wait_until

SPACES = environment_spaces(make_vector_env(EnvironmentFactory("CartPole-v1"), 1))
N_ENVS = 3
SEED = 5


def weights(spec: PolicySpec = PolicySpec()) -> PolicyState:  # noqa: B008 - frozen
    """New weights."""
    return TorchPolicy(SPACES, spec).state_arrays()


class Policies:
    """Stands for `FollowedPolicies`: a test publishes."""

    def __init__(self, version: int = 0, state: PolicyState | None = None) -> None:
        self._digests: dict[int, bytes] = {}
        self._newest: FollowedPolicy | None = None
        self._take: Callable[[FollowedPolicy], None] = lambda _policy: None
        if state is not None:
            self.publish(version, state)

    def publish(self, version: int, state: PolicyState) -> None:
        self._digests = {**self._digests, version: weights_digest(state)}
        self._newest = FollowedPolicy(version, state, self._digests)
        self._take(self._newest)

    def follow(self, take: Callable[[FollowedPolicy], None]) -> None:
        self._take = take
        if self._newest is not None:
            take(self._newest)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def engine_of(policies: Policies) -> Iterator[InferenceEngine]:
    with InferenceEngine(policies) as engine:  # type: ignore[arg-type]  # it has all that an engine uses
        yield engine


@contextlib.contextmanager
def serving(address: str, source: Any, **options: Any) -> Iterator[EnvironmentServer]:
    """A server of central inference."""
    with EnvironmentServer(address, DialledEnvironments(address=address), inference=source, **options) as server:
        yield server


def address_in(folder: Path) -> str:
    return f"unix:{folder / 'inference'}"


class Actor:
    """A policy whose parameters are asked for, and the same one alone.

    Attributes:
        policy: Asks.
        alone: Does not.
    """

    def __init__(
        self, address: str, spec: PolicySpec, *, timeout_s: float = 60.0, security: ClientSecurity = PLAIN_CLIENT
    ) -> None:
        self.central = CentralInference(address, timeout_s=timeout_s, security=security)
        own, self.alone = (make_policy(SPACES, spec, seed=SEED) for _ in range(2))
        self.policy = self.central.over(own, spec, seed=SEED, slot=0)

    def __enter__(self) -> "Actor":
        return self

    def __exit__(self, *_error: object) -> None:
        self.central.close()

    @property
    def n_answers(self) -> int:
        return self.central.latencies.n_noted

    def load(self, version: int, state: PolicyState) -> "Actor":
        self.policy.load(version, state)
        self.alone.load(version, state)
        return self

    def ask(self) -> Any:
        """Returns the parameters of an observation, from wherever they come."""
        return _parameters(self.policy)

    def ask_until_answered(self) -> Any:
        """Returns the server's, once it is there."""
        before, found = self.n_answers, []

        def is_answered() -> bool:
            found.append(self.ask())
            return self.n_answers > before

        wait_until(is_answered, "an answer of central inference")
        return found[-1]


def _parameters(policy: Policy) -> Any:
    observation = {"": SPACES[FLAT_SUBSTEP].observation.low[None].clip(-1.0, 1.0)}
    if (stacks := policy.frame_stacks(1)) is not None:
        observation = dict(stacks.push(observation))
    return policy.parameters_of(observation, FLAT_SUBSTEP, policy.initial_state(1)).copy()


def rollouts(policy: Policy, n: int = 3, *, should_stop: Callable[[], bool] | None = None) -> list[Rollout]:
    """Rollouts of a worker with CartPoles."""
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1"), N_ENVS)
    worker = make_worker(vector_env, policy, 20, actor_id="a", incarnation=1, env_seed=7)
    with contextlib.closing(worker):
        found = [rollout for _ in range(n) if (rollout := worker.collect(should_stop)) is not None]
    assert len(found) == n
    return found
