"""Actors that dial in from wherever they are."""

from collections.abc import Sequence

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.status.service import LearnerControl


class RemoteDistributedActors(ServedDistributedActors):
    """Starts no actor: whoever joins, acts; they come and go while training runs.

    Args:
        policy: The policy to cast first.
        n_rollout_steps: T.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: Times `batch_size`, the capacity of the queue.
        addresses: Where to listen: `host:port` or `unix:/path`.
        envs_per_actor: Environments that an actor steps at once, unless it was started with a number of its own.
        seed: From which the actors' seeds derive.
        max_actors: Actors that may be alive at once.
        max_policy_lag: Rollouts that are more versions old are dropped and counted; None: none is.
        bounded_staleness: Actors wait for the newest policy before they start a rollout.
        deterministic: See `ServedDistributedActors`.
        control: Who may steer over `LearnerService`; None: it tells the status only.
        security: What is asked of clients that come over TCP.
        collect_timeout_s: How long `collect_outputs` waits before it gives up.
    """

    def __init__(
        self,
        policy: TorchPolicy,
        n_rollout_steps: int,
        batch_size: int,
        queue_out_of_sync_factor: float = 1.0,
        *,
        addresses: Sequence[str],
        envs_per_actor: int = 64,
        seed: int = 0,
        max_actors: int = 64,
        max_policy_lag: int | None = None,
        bounded_staleness: bool = False,
        deterministic: bool = False,
        control: LearnerControl | None = None,
        security: ServerSecurity = PLAIN_SERVER,
        collect_timeout_s: float = 600.0,
    ) -> None:
        super().__init__(
            None,
            policy,
            n_rollout_steps,
            0,
            batch_size,
            queue_out_of_sync_factor,
            addresses=addresses,
            envs_per_actor=envs_per_actor,
            seed=seed,
            max_actors=max_actors,
            max_policy_lag=max_policy_lag,
            bounded_staleness=bounded_staleness,
            deterministic=deterministic,
            control=control,
            security=security,
            collect_timeout_s=collect_timeout_s,
        )

    def leave_waiting(self) -> None:
        """Lets `stop` break the streams with UNAVAILABLE instead of ending them: the actors reconnect with backoff."""
        self._training_goes_on = True
