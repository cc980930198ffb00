"""Makes the rollout worker that fits the environments."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rollcast.actor.policies.base import Policy
from rollcast.actor.vector.make import Environments
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.actor.workers.structured import StructuredRolloutWorker
from rollcast.services.rollouts.rollouts import Rollout


class Worker(Protocol):
    """A rollout worker; see `RolloutWorker`."""

    def collect(self, should_stop: Callable[[], bool] | None = None) -> Rollout | None:
        """Returns the next rollout; None if `should_stop` returned True."""

    def close(self) -> None:
        """Closes the environments. Idempotent."""


def make_worker(
    vector_env: Environments,
    policy: Policy,
    n_rollout_steps: int,
    *,
    actor_id: str,
    incarnation: int,
    env_seed: int | Sequence[int],
    first_sequence: int = 1,
    deterministic: bool = False,
) -> Worker:
    """Makes a worker; arguments and errors are those of `RolloutWorker` and `StructuredRolloutWorker`."""
    arguments: dict[str, Any] = {
        "actor_id": actor_id,
        "incarnation": incarnation,
        "env_seed": env_seed,
        "first_sequence": first_sequence,
        "deterministic": deterministic,
    }
    if isinstance(vector_env, StructuredVectorEnv):
        return StructuredRolloutWorker(vector_env, policy, n_rollout_steps, **arguments)
    return RolloutWorker(vector_env, policy, n_rollout_steps, **arguments)
