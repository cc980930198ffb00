"""Makes the rollout worker that fits the environments."""

from collections.abc import Callable, Sequence
from typing import Any

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.environments.device import device_of
from rollcast.actor.policies.base import Policy
from rollcast.actor.vector.make import Environments
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.dialled import DialInWorker
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
    """Makes a worker of the class for these environments. See the four worker classes for arguments and errors."""
    make: Callable[..., Worker[Any]] = RolloutWorker
    if isinstance(vector_env, StructuredVectorEnv):
        make = StructuredRolloutWorker
    elif isinstance(vector_env, DialledEnvironments):
        make = DialInWorker
    elif device_of(vector_env) is not None:
        from rollcast.actor.workers.on_device import DeviceRolloutWorker  # loads torch, which others do without

        make = DeviceRolloutWorker
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
