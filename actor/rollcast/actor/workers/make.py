"""Makes the rollout worker that fits the environments."""

from collections.abc import Callable, Sequence
from typing import Any

from rollcast.actor.policies.base import Policy
from rollcast.actor.vector.make import Environments
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.actor.workers.structured import StructuredRolloutWorker


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
) -> Worker[Any]:
    """Makes a worker; arguments and errors are those of `RolloutWorker` and `StructuredRolloutWorker`."""
    is_structured = isinstance(vector_env, StructuredVectorEnv)
    make: Callable[..., Worker[Any]] = StructuredRolloutWorker if is_structured else RolloutWorker
    return make(
        vector_env,
        policy,
        n_rollout_steps,
        actor_id=actor_id,
        incarnation=incarnation,
        env_seed=env_seed,
        first_sequence=first_sequence,
        deterministic=deterministic,
    )
