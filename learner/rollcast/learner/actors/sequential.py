"""Actors one after the other in this very thread: for debugging, and the same bits every time."""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.seeds import derive_seed
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.workers.make import Worker, make_worker
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.ingest.queue import RolloutSlice
from rollcast.services.errors import ActorFailedError, CollectInterruptedError, ConfigurationError
from rollcast.services.policies.policies import PolicyState


def check_seeds(name: str, seeds: Sequence[int] | None, n_actors: int) -> tuple[int, ...]:
    """One seed an actor, or none at all.

    Raises:
        ConfigurationError: Another number of seeds.
    """
    if seeds is None:
        return ()
    if len(seeds) != n_actors:
        raise ConfigurationError(f"{name} has {len(seeds)} entries; expected n_actors = {n_actors}, one each")
    return tuple(seeds)


def _name(slot: int) -> str:
    return f"sequential-{slot}"


@contextlib.contextmanager
def _naming(slot: int) -> Iterator[None]:
    """Puts an actor's name before what it failed with, as for actors in other processes."""
    try:
        yield
    except ActorFailedError as error:
        error.args = (f"actor {_name(slot)} failed: {error}",)
        raise


class SequentialDistributedActors(DistributedActors):
    """Runs its actors in turn, a rollout each, whenever trajectories are missing. Bit-reproducible for the same seeds.

    Args:
        env_factory: Makes one environment.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        n_actors: How many actors take turns.
        batch_size: B, in trajectories.
        actor_env_seeds: A seed an actor for its environments; derived from `seed` where None.
        actor_agent_seeds: A seed an actor for its sampling of actions; likewise.
        envs_per_actor: Environments each of them steps at once.
        seed: From which seeds that are not given derive.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        actor_env_seeds: Sequence[int] | None = None,
        actor_agent_seeds: Sequence[int] | None = None,
        *,
        envs_per_actor: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(env_factory, policy, n_rollout_steps, n_actors, batch_size)
        self._env_factory = env_factory
        self._envs_per_actor = envs_per_actor
        self._seed = seed
        self._given_seeds = (
            check_seeds("actor_env_seeds", actor_env_seeds, n_actors),
            check_seeds("actor_agent_seeds", actor_agent_seeds, n_actors),
        )
        # Each checkpoint begins another, with seeds of its own.
        self._incarnation = 1
        self._workers: list[tuple[Worker, Policy]] = []
        self._turn = 0
        self._queue: deque[RolloutSlice] = deque()
        self._version = 0

    def start(self) -> None:
        """Makes the environments and the policies."""
        if self._workers:
            return
        self._version = self._versions_before
        self._make_workers()

    def state(self) -> dict[str, Any]:
        """See `DistributedActors.state`; whoever resumes begins with the incarnation that `renew` does."""
        return super().state() | {"incarnation": self._incarnation + 1}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `DistributedActors.load_state`."""
        super().load_state(state)
        self._version = self._versions_before
        self._incarnation = state["incarnation"]

    def renew(self) -> bool:
        """Begins all environments anew, with other seeds, as resuming does: environments cannot be saved.

        What was played and not collected yet is dropped, episodes that have not ended count for nothing.
        """
        if not self._workers:
            return False
        self._close_workers()
        self._incarnation += 1
        self._make_workers()
        return True

    def _make_workers(self) -> None:
        """Makes environments and policies, and casts the policy to them."""
        for slot in range(self.n_actors):
            policy = make_policy(
                self.policy.spaces,
                self.policy.spec,
                seed=self._seed_of(slot, 1),
                allowed_network=self.policy.spec.network,
                slot=slot,
            )
            worker = make_worker(
                make_vector_env(self._env_factory, self._envs_per_actor),
                policy,
                self.n_rollout_steps,
                actor_id=_name(slot),
                incarnation=self._incarnation,
                env_seed=self._seed_of(slot, 0),
            )
            self._workers.append((worker, policy))
        self.broadcast_updated_policy(self.policy.state_arrays())

    def stop(self) -> None:
        """Closes the environments."""
        self._close_workers()

    def _close_workers(self) -> None:
        for worker, _ in self._workers:
            worker.close()
        self._workers.clear()
        self._queue.clear()
        self._batchers.clear()
        self._turn = 0

    def _seed_of(self, slot: int, which: int) -> int:
        """That of the environments (0), or of the sampling (1), of an actor."""
        if self._incarnation == 1 and self._given_seeds[which]:
            return self._given_seeds[which][slot]
        return derive_seed(self._seed, which, slot, self._incarnation)

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Hands the next version to every actor; each uses it from its next rollout on."""
        self._version += 1
        for _, policy in self._workers:
            policy.load(self._version, state_dict)

    @property
    def policy_version(self) -> int:
        """The newest version that was cast."""
        return self._version

    @property
    def queue_size(self) -> int:
        """Trajectories of the last rollout that the last batch did not need."""
        return sum(piece.n_trajectories for piece in self._queue)

    @property
    def queue_capacity(self) -> int:
        """One rollout: nothing is played ahead."""
        return self._envs_per_actor

    @property
    def n_actors_alive(self) -> int:
        """All of them, once started."""
        return len(self._workers)

    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        """What is left of the last rollout: nothing is played ahead."""
        return self.next_slice(max_trajectories) if self._queue else None

    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        """Lets the actor whose turn it is play a rollout, if none is left."""
        if not self._queue:
            slot = self._turn
            worker, _ = self._workers[slot]
            self._turn = (self._turn + 1) % self.n_actors
            with self.waiting.waiting_for("a rollout that is played in this thread"), _naming(slot):
                rollout = worker.collect(lambda: self.interrupted)
            if rollout is None:
                raise CollectInterruptedError("collecting was interrupted: training is to end")
            self._queue.append(RolloutSlice(rollout, 0, rollout.n_envs))
        piece, rest = self._queue.popleft().cut(max_trajectories)
        if rest is not None:
            self._queue.appendleft(rest)
        return piece
