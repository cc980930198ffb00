"""Actors that dial in from other processes and machines."""

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.missing_actors import await_missing_actors
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.serving.seeds import ActorSeeds


class RemoteDistributedActors(ServedDistributedActors):
    """Actors that join by themselves, and may leave and rejoin during training. This class starts no actors.

    Args:
        policy: The policy; its weights are the first published version.
        n_rollout_steps: T.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: The capacity of the queue, in batches.
        envs_per_actor: The number of environments of an actor without its own setting.
        seed: The seed from which the actors' seeds derive.
        serving: The serving options; actors dial in at their `addresses`.

    Raises:
        ConfigurationError: See `ServedDistributedActors`.
    """

    def __init__(
        self,
        policy: TorchPolicy,
        n_rollout_steps: int,
        batch_size: int,
        queue_out_of_sync_factor: float = 1.0,
        *,
        envs_per_actor: int = 64,
        seed: int = 0,
        serving: ServingOptions,
    ) -> None:
        super().__init__(
            None,
            policy,
            n_rollout_steps,
            0,
            batch_size,
            queue_out_of_sync_factor,
            envs_per_actor=envs_per_actor,
            seeds=ActorSeeds(seed),
            serving=serving,
            bounded_staleness=False,
        )

    def stop(self) -> None:
        """See `ServedDistributedActors.stop`. First tells disconnected actors that training has ended.

        Actors in backoff would otherwise retry until their own timeout.
        """
        if self._is_serving and not self._training_goes_on:
            self._started().end_training()
            await_missing_actors(self._started().registry, may_end=lambda: self.cancels_waits or self._training_goes_on)
        super().stop()

    @property
    def leaves_waiting(self) -> bool:
        """True after `leave_waiting`."""
        return self._training_goes_on

    def leave_waiting(self) -> None:
        """Makes `stop` break the streams with UNAVAILABLE, so that actors reconnect with backoff."""
        self._training_goes_on = True
